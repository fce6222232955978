"""What a run says about the check of numbers: what it allows, what it refused, what it missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_engine.records.accuracy import RunTolerance
from collage_engine.records.errors import MeasureError
from collage_engine.records.settings import RunSettings
from collage_engine.trials.contender import ContenderResult
from collage_engine.wording import stages as say

MANY = 0.5
"""Share of the contenders that ran from which on it is said that their numbers were refused;
chosen."""
LARGE_TOLERANCE = 0.01
"""Share of an output's largest value from which on its tolerance is said at the top; chosen: an
error of that size is no rounding to whoever reads the numbers."""


def sample_warnings(not_finite: Mapping[str, float], settings: RunSettings) -> list[str]:
    """Return sentences on outputs that the samples do not check, or not wholly.

    Args:
        not_finite: By output the share of its true values that compare nothing.
        settings: The run's settings.
    """
    given = settings.inputs_npz is not None
    none = [name for name, share in not_finite.items() if share == 1.0]
    said = []
    if none:
        names = ", ".join(map(repr, none))
        said.append((say.NOT_CHECKED_GIVEN if given else say.NOT_CHECKED).format(outputs=names))
    part = {name: share for name, share in not_finite.items() if share < 1.0}
    if part and not given:
        shares = ", ".join(f"{share:.0%} of {name!r}" for name, share in part.items())
        said.append(say.PARTLY_CHECKED.format(shares=shares))
    return said


def refuse_unchecked(
    outputs: Sequence[str], not_finite: Mapping[str, float], settings: RunSettings
) -> None:
    """Refuse to export what could be wrong altogether.

    Args:
        outputs: The model's outputs.
        not_finite: By output the share of its true values that compare nothing.
        settings: The run's settings, which may ask for it all the same.

    Raises:
        MeasureError: No output was checked.
    """
    if settings.unchecked or not all(not_finite.get(name) == 1.0 for name in outputs):
        return
    given = settings.inputs_npz is not None
    raise MeasureError(say.NOTHING_CHECKED_GIVEN if given else say.NOTHING_CHECKED)


def tolerance_warnings(tolerance: RunTolerance, outcomes: Sequence[ContenderResult]) -> list[str]:
    """Return sentences on contenders that were refused for their numbers.

    They stand at the top of every report. There are none where only a minority was refused and the
    tolerance is above what rounding asks for.

    Args:
        tolerance: The run's tolerance.
        outcomes: What became of all contenders.
    """
    said = []
    if tolerance.source == "user" and tolerance.noise:
        name, moved = max(tolerance.noise.items(), key=lambda one: one[1])
        said.append(
            say.AMPLIFIES_ROUNDING.format(
                output=name, moved=f"{moved:.1e}", tolerance=f"{tolerance.value:g}"
            )
        )
    large = {
        name: bound
        for name, bound in (tolerance.by_output or {"": tolerance.value}).items()
        if bound > LARGE_TOLERANCE
    }
    if large and tolerance.source != "user":
        name, bound = max(large.items(), key=lambda one: one[1])
        which = say.OF_OUTPUT.format(output=name) if name else say.OF_OUTPUTS
        amplified = name in tolerance.noise or (not name and tolerance.source == "rounding")
        why = say.BY_ROUNDING if amplified else say.BY_PRECISION
        said.append(say.LARGE_TOLERANCE.format(which=which, bound=f"{bound:.2g}", why=why))
    ran = [one for one in outcomes if one.max_rel_error is not None]
    refused = [
        one
        for one in ran
        if one.reason is not None
        and (one.max_rel_error or 0.0)
        > tolerance.value  # no --tolerance admits another one of whole numbers
    ]
    if refused and len(refused) >= MANY * len(ran):
        errors = sorted(one.max_rel_error or 0.0 for one in refused)
        said.append(
            say.MANY_REFUSED.format(
                refused=len(refused),
                ran=len(ran),
                least=f"{errors[0]:.1e}",
                most=f"{errors[-1]:.1e}",
                tolerance=f"{tolerance.value:g}",
            )
        )
    return said
