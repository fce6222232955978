"""Makes the bars of the runs panel: how fast each run and each baseline is."""

from __future__ import annotations

from collage_engine.drawing.baselines import baseline_title
from collage_engine.drawing.formatting import gain_text
from collage_engine.drawing.palette import toolchain_look
from collage_engine.records.placement import Baseline, Run
from collage_gui.document.document import Document
from collage_gui.panels.bar_chart import Bar

NEUTRAL = "#8a9199"
_RUNS_SHOWN = 6
"""The latest runs that get a bar; chosen."""


def run_bars(document: Document, run: Run | None, own_colour: str) -> list[Bar]:
    """The bars of an estimate, of the latest runs, and of a run's baselines.

    Args:
        document: The document; what it shows without a run is an estimate.
        run: The run whose baselines are shown.
        own_colour: Colour of the shown run. Other runs are grey, and each toolchain's baseline has
            the colour and pattern of the toolchain.
    """
    _, against = document.comparison.reference_time()
    return [
        *_estimate_bars(document, against),
        *_own_bars(document, against, own_colour),
        *_baseline_bars(run),
    ]


def _estimate_bars(document: Document, against: float | None) -> list[Bar]:
    if document.placement.shown is None or document.placement.shown.run is not None:
        return []
    estimate = document.placement.shown.placement.estimated_us
    note = gain_text(estimate, against) if against is not None else ""
    return [
        Bar("Now (estimated)", estimate, colour=NEUTRAL, pattern="rising", strong=True, note=note)
    ]


def _own_bars(document: Document, against: float | None, own_colour: str) -> list[Bar]:
    current = document.placement.shown.run if document.placement.shown else None
    bars = []
    for each in reversed(document.runs.visible[-_RUNS_SHOWN:]):
        placement = each.placement
        if placement is None:
            continue
        value = placement.measured_us or placement.estimated_us
        low, high = placement.spread_us or (None, None)
        note = gain_text(value, against) if each.id == current else ""
        if placement.measured_us is None:
            note += " estimated"
        bars.append(
            Bar(
                document.runs.title_of(each),
                value,
                low,
                high,
                own_colour if each.id == current else NEUTRAL,
                note=note.strip(),
                key=f"run:{each.id}",
                strong=each.id == current,
                second=placement.estimated_us if placement.measured_us is not None else None,
            )
        )
    return bars


def _baseline_bars(run: Run | None) -> list[Bar]:
    if run is None:
        return []
    bars = []
    for baseline in sorted(run.baselines, key=lambda b: b.measured_us or float("inf")):
        low, high = baseline.spread_us or (None, None)
        look = toolchain_look(baseline.name) if baseline.kind == "whole-model" else None
        bars.append(
            Bar(
                baseline_title(baseline),
                baseline.measured_us,
                low,
                high,
                look.colour if look else NEUTRAL,
                look.pattern if look else "dots",
                _baseline_note(run, baseline),
                key=f"baseline:{baseline.name}",
            )
        )
    return bars


def _baseline_note(run: Run, baseline: Baseline) -> str:
    """Why it has no time, or that it is as fast as what was chosen."""
    if baseline.measured_us is None:
        return baseline.reason or ""
    return "tied with the chosen placement" if baseline.name in run.tied else ""
