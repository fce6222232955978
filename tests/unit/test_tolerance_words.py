"""What is said of a tolerance that rounding decides on, and of contenders that break it."""

from __future__ import annotations

import msgspec
import pytest

from collage_engine.cli import print_run
from collage_engine.records.precision import RunTolerance
from collage_engine.run.stages.samples import tolerance_warnings
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.wording.facts import tolerance_sentences
from tests.unit.test_precision import run_of

ROUNDING = RunTolerance(
    value=4.5e-4,
    source="rounding",
    default=1e-4,
    noise={"scores": 1.5e-4},
    by_output={"boxes": 1e-4, "scores": 4.5e-4},
)
PRECISION = RunTolerance(value=1e-4, source="precision", default=1e-4)


def outcomes(*errors: float, refused: int = 0) -> list[ContenderResult]:
    """Contenders with these errors, the first ones refused, and one that cannot be built."""
    found = [
        ContenderResult(
            contender=Contender(name=f"c{k}", kind="whole-model"),
            max_rel_error=error,
            reason=f"wrong numbers: max_rel_error {error:g}" if k < refused else None,
        )
        for k, error in enumerate(errors)
    ]
    absent = Contender(name="absent", kind="whole-model", reason="not installed")
    return [*found, ContenderResult(contender=absent, reason=absent.reason)]


def test_a_run_says_that_the_model_amplifies_rounding_and_what_is_allowed_therefore() -> None:
    run = msgspec.structs.replace(run_of("float32", 3000.0, None), tolerance=ROUNDING)
    (told,) = tolerance_sentences(run)
    assert told.startswith("the model amplifies rounding")
    assert "'scores' by 1.5e-04, so that an error of 4.5e-04 is allowed there" in told
    assert "boxes" not in told and "otherwise 0.0001 is allowed" in told


def test_it_is_said_loudly_when_most_contenders_are_refused_for_their_numbers() -> None:
    (told,) = tolerance_warnings(PRECISION, outcomes(3.6e-4, 1.8e-4, 2e-6, refused=2))
    assert told.startswith("2 of 3 contenders were refused")
    assert "by 1.8e-04 to 3.6e-04, more than the tolerance of 0.0001" in told


def test_a_given_tolerance_below_the_rounding_noise_is_warned_of() -> None:
    strict = msgspec.structs.replace(ROUNDING, source="user", value=2e-4, by_output={})
    (told,) = tolerance_warnings(strict, outcomes(1e-6))
    assert "output 'scores' moves by 1.5e-04" in told and "0.0002" in told


def test_a_tolerance_above_one_percent_is_said_at_the_top() -> None:
    large = msgspec.structs.replace(ROUNDING, by_output={"boxes": 1e-4, "scores": 0.03})
    (told,) = tolerance_warnings(large, [])
    assert "'scores' up to 0.03" in told and "amplifies rounding" in told
    (told,) = tolerance_warnings(
        RunTolerance(value=0.5, source="rounding", default=1e-4, noise={"y": 0.2}), []
    )
    assert "amplifies rounding" in told
    (told,) = tolerance_warnings(RunTolerance(value=0.02, source="precision", default=0.02), [])
    assert "up to 0.02" in told and "precision" in told
    # The user knows what he asked for, and one percent is no surprise.
    assert not tolerance_warnings(RunTolerance(value=0.1, source="user", default=1e-4), [])
    assert not tolerance_warnings(RunTolerance(value=0.01, source="precision", default=0.01), [])


def test_warnings_stand_above_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    run = msgspec.structs.replace(run_of("float32", 3000.0, None), warnings=["take care"])
    print_run.print_run(run)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "warning: take care" and lines[1].startswith("Collage")
