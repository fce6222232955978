"""What a run did not do for want of time, in sentences."""

from __future__ import annotations

from collage_engine.records.counted import counted
from collage_engine.records.placement import Run, Unmeasured


def unmeasured_sentences(run: Run) -> list[str]:
    """What was left unmeasured because the run ended early; nothing where it did all its work."""
    found = []
    if run.unmeasured is not None:
        ended = "was stopped" if run.ended == "stopped" else "came to the end of its budget"
        found.append(f"The run {ended} early: {_left_out(run.unmeasured)}")
    if run.confirmation == "trial":
        found.append(
            "There was no time for a confirmation: the times are those of the first trials"
        )
    elif run.confirmation == "quick":
        found.append("The confirmation was a quick one, of the most promising placements only")
    return found


def _left_out(unmeasured: Unmeasured) -> str:
    parts = []
    if unmeasured.candidates:
        parts.append(
            f"{counted(unmeasured.candidates, 'candidate')} ({unmeasured.share:.0%}) that could "
            "matter were not measured"
        )
    if unmeasured.contenders:
        parts.append(
            f"{counted(unmeasured.contenders, 'contender')} took no part in the confirmation"
        )
    return " and ".join(parts) or "a stage did not finish"
