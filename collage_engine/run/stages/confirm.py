"""The stages that end a run: covers and baselines built whole and timed, the winner exported."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.candidates.open_model import Menu
from collage_engine.candidates.pins import breaks_pin
from collage_engine.partition.call_graph import call_graph
from collage_engine.planning.limits import barred, constraints_of
from collage_engine.records.counted import counted
from collage_engine.records.placement import Placement
from collage_engine.run.context import RunState
from collage_engine.trials.baselines import COLLAGE, baselines, cover_of
from collage_engine.trials.confirmation import Confirmation, confirm
from collage_engine.trials.contender import Contender, Sample


def confirm_placements(
    state: RunState, menu: Menu, placements: Sequence[Placement], sample: Sample
) -> Confirmation:
    """Time the placements and all baselines end to end, in turn.

    Raises CollageError when none of them can be built and run.
    """
    with state.control.stage("build") as report:
        covers = [
            Contender(
                name=COLLAGE if place == 0 else f"{COLLAGE} {place + 1}",
                kind="collage",
                cover=cover_of(placement, menu, state.records),
                order=place,
            )
            for place, placement in enumerate(placements)
        ]
        calls = call_graph(state.model.graph)
        others = [
            _judged(state, contender)
            for contender in baselines(calls, menu, state.settings, len(covers))
        ]
        report.detail = f"{counted(len(covers), 'cover')}, {counted(len(others), 'baseline')}"
    with state.control.stage("confirm") as report:
        folder = Path(tempfile.mkdtemp(prefix="confirm-", dir=state.workspace.folder))
        confirmation = confirm(
            state.model,
            [*covers, *others],
            inputs=sample.inputs,
            truth=sample.truth,
            tolerance=state.tolerance,
            folder=folder,
            cancel=state.control.cancelled,
            on_progress=report.progress,
            more=state.further,
        )
        report.detail = f"{confirmation.named} wins"
    return confirmation


def _judged(state: RunState, contender: Contender) -> Contender:
    """A baseline with whether it may win: it breaks no pin and no deployment constraint."""
    why = barred(contender.cover, constraints_of(state.settings, state.constants))
    broken = any(breaks_pin(contender.cover, pin) for pin in state.pins)
    return replace(contender, eligible=why is None and not broken, barred=why)


def export_winner(
    state: RunState, menu: Menu, confirmation: Confirmation, chosen: Placement, sample: Sample
) -> str | None:
    """Write the confirmed winner as an artifact; its folder, None where none was asked for."""
    if state.out is None:
        return None
    winner = confirmation.winner
    assert winner.folder is not None
    with state.control.stage("export") as report:
        contents = ArtifactContents(
            inputs=sample.inputs,
            outputs=sample.truth,
            tolerance=state.tolerance,
            placement=chosen,
            target=state.settings.target,
            versions={s.name: s.version or "" for s in menu.states if s.available},
        )
        write_artifact(state.model, winner.folder, Path(state.out), contents)
        report.detail = state.out
    return state.out
