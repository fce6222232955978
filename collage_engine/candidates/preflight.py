"""What a run would do, before it spends anything."""

from __future__ import annotations

from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.records.answers import PreflightAnswer, RunUpdate
from collage_engine.records.cost_table import records_of
from collage_engine.records.faults import FaultTracker
from collage_engine.records.settings import RunSettings

SECONDS_FIXED, SECONDS_PER_CANDIDATE = 25.0, 0.17
"""Seconds of a run without new candidates, and for each of them, for the expectation that is shown
before it. Measured where runs ended by themselves (Zen 4, one thread): mnist with 176 took 54 s, a
ShuffleNet with 1,424 took 268 s."""


def preflight(
    open_model: OpenModel, settings: RunSettings, faults: FaultTracker
) -> tuple[PreflightAnswer, RunUpdate]:
    """Count the candidates of a run, and find the operators that no chosen toolchain takes.

    Args:
        open_model: The model.
        settings: The run's settings.
        faults: Which toolchains are left out; takes those that fail when they are asked.

    Returns:
        The counts with the time that the run may take, and the candidates with stored costs.

    Raises:
        UsageError: The settings name a toolchain that does not exist or has no such target.
        ToolchainError: No toolchain is available.
    """
    menu = open_model.menu(settings, faults=faults)
    held = {node for candidate in menu.candidates for node in candidate.nodes}
    keys = {candidate.key for candidate in menu.candidates}
    stored = {c.key for c in menu.candidates if menu.costs.known(c.id)}
    expected = SECONDS_FIXED + SECONDS_PER_CANDIDATE * len(keys - stored)
    answer = PreflightAnswer(
        uncovered=tuple(n for n in range(len(open_model.model.graph.operators)) if n not in held),
        candidates=len(menu.candidates),
        distinct=len(keys),
        stored=len(stored),
        expected_s=min(expected, settings.budget_s),
    )
    return answer, menu_update(menu)


def menu_update(menu: Menu) -> RunUpdate:
    """Return a menu as it is handed to whoever listens to a run."""
    return RunUpdate(
        candidates=records_of(menu.candidates, menu.costs),
        without_candidates={
            name: dict(reasons) for name, reasons in menu.without_candidates.items()
        },
        toolchains=list(menu.states),
    )
