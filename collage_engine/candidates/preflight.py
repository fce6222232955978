"""What a run would do, before anything is spent."""

from __future__ import annotations

from collage_engine.candidates.open_model import Workspace
from collage_engine.records.answers import PreflightAnswer
from collage_engine.records.results import RunOutcome
from collage_engine.records.settings import RunSettings

SECONDS_PER_CANDIDATE = 0.35
"""Compile, check and time one, as seen on two cores; only for the expectation shown."""
SECONDS_FIXED = 25.0
"""Recording activations, building and confirming."""


def preflight(workspace: Workspace, settings: RunSettings) -> tuple[PreflightAnswer, RunOutcome]:
    """Count, and tell which operators no chosen toolchain takes."""
    menu = workspace.menu(settings)
    held = {node for record in menu.records for node in record.nodes}
    keys = {record.key for record in menu.records}
    stored = {record.key for record in menu.records if record.cost.state != "unknown"}
    expected = SECONDS_FIXED + SECONDS_PER_CANDIDATE * len(keys - stored)
    answer = PreflightAnswer(
        uncovered=tuple(n for n in range(workspace.model.record.nodes) if n not in held),
        candidates=len(menu.records),
        distinct=len(keys),
        stored=len(stored),
        expected_s=min(expected, SECONDS_FIXED + settings.budget_s),
    )
    return answer, RunOutcome(
        candidates=menu.records, not_offered=menu.not_offered, toolchains=menu.states
    )


def enumerate_only(workspace: Workspace, settings: RunSettings) -> RunOutcome:
    """The candidates of a model with stored costs; nothing is measured."""
    menu = workspace.menu(settings)
    return RunOutcome(candidates=menu.records, not_offered=menu.not_offered, toolchains=menu.states)
