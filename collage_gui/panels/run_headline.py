"""Says in one line how fast the shown placement is, and in a second what belongs to it."""

from __future__ import annotations

from collage_engine.drawing.accuracy import accuracy_sentences
from collage_engine.drawing.formatting import counted, gain_text, signed_time, time_text
from collage_engine.records.placement import Placement, Run
from collage_gui.document.document import Document
from collage_gui.panels.run_bars import baseline_title


def headline(document: Document) -> str:
    """The latency and its gain: ``441 µs measured  ▼ 12 % against TVM only``."""
    if document.placement.shown is None:
        return "There is no run yet"
    placement = document.placement.shown.placement
    name, against = document.comparison.reference_time()
    baseline = document.comparison.reference_baseline()
    if baseline is not None:
        name = baseline_title(baseline)
    now = placement.measured_us if placement.measured_us is not None else placement.estimated_us
    kind = "measured" if placement.measured_us is not None else "estimated"
    text = f"{time_text(now)} {kind}"
    if against is not None:
        text += f"  {gain_text(now, against)} against {name}"
    return text


def detail(document: Document, run: Run | None) -> str:
    """Partitions, estimate, winner, lower bound, accuracy, what was left out, limits."""
    shown = document.placement.shown
    if shown is None:
        return (
            "A run measures the candidates, searches for the fastest placement and confirms it "
            "end to end against every baseline."
        )
    parts = [shown.title, *_placement_texts(shown.placement)]
    if run is not None and shown.run == run.id:
        parts += _run_texts(run)
    return " · ".join(parts)


def _placement_texts(placement: Placement) -> list[str]:
    parts = [counted(len(placement.partitions), "partition")]
    if placement.measured_us is not None:
        total = sum(p.estimated_us or 0 for p in placement.partitions)
        parts.append(f"the partitions' estimates add up to {time_text(total)}")
        parts.append(
            f"with hand-overs {time_text(placement.estimated_us)}, "
            f"off by {signed_time(placement.additive_error_us)}"
        )
    return parts


def _run_texts(run: Run) -> list[str]:
    parts = []
    if run.winner != "collage":
        won = next((b for b in run.baselines if b.name == run.winner), None)
        name = baseline_title(won) if won else run.winner
        parts.append(f"the winner is {name}: it is what is exported")
    if run.lower_bound_us is not None:
        parts.append(f"no placement is estimated below {time_text(run.lower_bound_us)}")
    parts += accuracy_sentences(run)[1:]
    if run.candidates.skipped:
        parts.append(f"{counted(run.candidates.skipped, 'candidate')} left unmeasured")
    parts += [limit.reason or limit.text for limit in run.limits]
    return parts
