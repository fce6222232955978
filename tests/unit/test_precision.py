"""What reduced precision changes in candidates and words.

What is said of a tolerance that rounding decides on, and of contenders that break it.
"""

from __future__ import annotations

import msgspec
import pytest

from collage_engine.cli import print_run
from collage_engine.partition.enumerate import CandidateSource, enumerate_candidates
from collage_engine.records.placement import Placement, Run
from collage_engine.records.precision import (
    Accuracy,
    RoundingTrial,
    RunTolerance,
    in_precision,
)
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.contenders import is_secondary
from collage_engine.run.stages.samples import tolerance_warnings
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.wording.facts import fact_lines, run_facts, tolerance_sentences
from tests.support.covers import candidate_on
from tests.support.graphs import resnet
from tests.support.runs import partition, run_record

FULL = ToolchainInstance(toolchain="lib")
NARROW = in_precision(FULL, "bfloat16")


def test_reduced_candidates_hold_a_product_and_all_others_are_offered_in_float32() -> None:
    net = resnet(2)
    sources = [CandidateSource(i, None, lambda index: None) for i in (FULL, NARROW)]
    found = enumerate_candidates(net, sources)
    products = {
        number
        for number, index in enumerate(net.operators)
        if net.nodes[index].op in ("nn.conv2d", "matmul")
    }
    assert products and len(products) < len(net.operators)
    narrow = {c.nodes for c in found if c.instance.id == NARROW.id}
    full = {c.nodes for c in found if c.instance.id == FULL.id}
    assert {n for nodes in narrow for n in nodes} >= products
    assert narrow == {nodes for nodes in full if products & set(nodes)}
    other = next(n for n in range(len(net.operators)) if n not in products)
    assert (other,) in full and (other,) not in narrow


def run_of(precision: str, measured: float, accuracy: Accuracy | None) -> Run:
    part = partition(0, 1, toolchain="lib", us=measured, precision=precision, max_rel_error=2e-3)
    return run_record(
        id="r",
        model={"nodes": 2},
        placement=Placement(partitions=(part,), estimated_us=measured, measured_us=measured),
        max_rel_error=4e-3,
        accuracy=accuracy,
    )


def words_of(run: Run) -> str:
    (line,) = fact_lines(run_facts(run), ["Accuracy"])
    return line


def test_nothing_is_said_to_be_won_where_everything_stayed_float32() -> None:
    about = Accuracy(precision="bfloat16", tolerance=0.01, samples=1, float32_us=3000.0)
    words = words_of(run_of("float32", 3000.0, about))
    assert "partitions in float32 1 of 1" in words and "against it" not in words
    assert "none is faster" not in words, "nothing was tried"
    broke = RoundingTrial(toolchain="tvm", rounded=2, max_rel_error=0.03, reason="it breaks it")
    late = RoundingTrial(toolchain="tvm", rounded=1, emulated_error=5e-3, reason="no time")
    for tried, said in (((broke,), True), ((broke, late), False)):
        run = run_of("float32", 3000.0, msgspec.structs.replace(about, tried=tried))
        assert ("none is faster and keeps the tolerance" in words_of(run)) == said


def test_a_whole_model_in_reduced_precision_is_tried_with_the_first() -> None:
    plain = ToolchainInstance(toolchain="a")
    tuned = ToolchainInstance(toolchain="a", config=(("opt", "1"),))
    secondary = {
        name: is_secondary(Contender(name=name, kind="whole-model", cover=(candidate_on(i, (0,)),)))
        for name, i in {
            "plain": plain,
            "tuned": tuned,
            "reduced": in_precision(plain, "bfloat16"),
            "both": in_precision(tuned, "bfloat16"),
        }.items()
    }
    assert secondary == {"plain": False, "tuned": True, "reduced": False, "both": True}


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
    assert "up to 0.02" in told and "amplifies" not in told
    # The user knows what he asked for, and one percent is no surprise.
    assert not tolerance_warnings(RunTolerance(value=0.1, source="user", default=1e-4), [])
    assert not tolerance_warnings(RunTolerance(value=0.01, source="precision", default=0.01), [])


def test_warnings_stand_above_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    run = msgspec.structs.replace(run_of("float32", 3000.0, None), warnings=["take care"])
    print_run.print_run(run)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "warning: take care" and lines[1].startswith("Collage")
