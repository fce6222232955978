"""What a run says when the check of numbers, and not time, decided which contenders were left."""

from __future__ import annotations

from collections.abc import Sequence

from collage_engine.records.accuracy import RunTolerance
from collage_engine.timing.messages import WRONG_NUMBERS
from collage_engine.trials.contender import ContenderResult
from collage_engine.trials.placement_process import NOT_ACCURATE
from collage_engine.wording import stages as say

MANY = 0.5
"""Share of the contenders that ran from which on it is said that their numbers were refused;
chosen."""


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
    ran = [one for one in outcomes if one.max_rel_error is not None]
    refused = [one for one in ran if (one.reason or "").startswith((WRONG_NUMBERS, NOT_ACCURATE))]
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
