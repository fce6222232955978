"""Tells what there is to act on: the context that enables actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_gui.actions import Need

if TYPE_CHECKING:
    from collage_gui.document.document import Document


def available(document: Document | None) -> frozenset[Need]:
    """Returns the needs of actions that a document meets; without a document, only ``nothing``."""
    if document is None:
        return frozenset({"nothing"})
    graph = document.operators is not None
    running = document.running
    met: dict[Need, bool] = {
        "nothing": True,
        "document": True,
        "still": not running,
        "graph": graph,
        "selection": graph and bool(document.selection.operators),
        "placement": graph and document.placement.shown is not None,
        "idle": graph and bool(document.handle) and not running,
        "running": running,
        "pins": bool(document.pins.current),
        "run": bool(document.runs.visible),
        "two placements": _two_placements(document),
    }
    return frozenset(need for need, is_met in met.items() if is_met)


def _two_placements(document: Document) -> bool:
    """Tells whether there is a placement beside the shown one: of a run, search or baseline."""
    runs = document.runs.visible
    found = any(run.winner != "collage" and run.best_found() is not None for run in runs)
    baselines = any(
        base.kind == "whole-model" and base.measured_us is not None and base.name != run.winner
        for run in runs
        for base in run.baselines
    )
    known = len(runs) > 1 or found or baselines or bool(document.placement.runners_up)
    return known and document.placement.shown is not None
