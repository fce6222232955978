"""Placing a model for several shapes: a run for each, and one artifact with an entry for each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from collage_engine.artifact.artifact import check_target_folder
from collage_engine.artifact.combine import combine_artifacts, fastest
from collage_engine.machine.folders import Scratch, resolve
from collage_engine.machine.worker import call_in_child
from collage_engine.records import protocol as p
from collage_engine.records.event import Log
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import STOPPED_BUDGET_S, ShapeChoice, ShapeRow, Sharing
from collage_engine.service import answers
from collage_engine.service.engine import Engine
from collage_engine.store.compare import shape_row
from collage_engine.store.session_file import earlier_session
from collage_engine.support.errors import CollageError, SessionError
from collage_engine.support.time_limits import WORK_S

PROOF = "collage_engine.model.padding:batch_dimension"
"""Reads the model's file, therefore in a process of its own."""


@dataclass(frozen=True)
class ShapesPlaced:
    """The outcome of placing a model for several shapes."""

    runs: tuple[Run, ...]
    """In the order of the choices; each holds the table of all of them."""
    rows: tuple[ShapeRow, ...]
    artifact: str | None
    sharing: Sharing | None
    session: Path | None = None
    """The session's file that was written."""
    not_saved: SessionError | None = None
    """Why it could not be written; None: it was, or none was asked for."""

    def document(self) -> dict[str, Any]:
        """Return what ``collage place --json`` prints, without what the runs say themselves."""
        return {
            "shapes": [{**msgspec.to_builtins(row), "gain": row.gain} for row in self.rows],
            "artifact": self.artifact,
            "sharing": msgspec.to_builtins(self.sharing),
            "sessions": [str(self.session)] if self.session is not None else [],
        }


def place_shapes(
    engine: Engine,
    path: str | Path,
    choices: Sequence[ShapeChoice],
    settings: RunSettings,
    *,
    out: str | Path | None = None,
    others: bool = False,
    pins: Sequence[str] = (),
    session: Path | None = None,
    spent_s: float = 0.0,
) -> ShapesPlaced:
    """Place a model for several shapes and write one artifact for all of them.

    The runs go one after the other on the same store, so work that is equal in two shapes is
    measured once. What is left of the budget is shared out evenly among the shapes that are left.

    Args:
        engine: Does the runs.
        path: The model's file.
        choices: The shapes.
        settings: The options of all runs; the budget is that of all of them together.
        out: Folder of the artifact; None: nothing is exported.
        others: Whether the artifact takes any other shape, too, by the model's own file.
        pins: Pins of every shape, written as for ``collage place --pin``.
        session: The file in which all shapes are kept; runs and shapes that it holds stay in it.
            None: nowhere.
        spent_s: Seconds of the budget that were spent before.

    Returns:
        The runs with their table, in the order of the choices.

    Raises:
        UsageError: A choice does not fit the model, or the session's file holds something else or
            cannot be written.
        ModelError: A shape contradicts what the model computes.
        CollageError: A run failed; the sentence names its shape. No artifact is written.
    """
    began = time.monotonic()
    if out is not None:
        check_target_folder(Path(out))
    if session is not None:
        earlier_session(session)  # what is no session is found before the model is opened
    # All shapes are opened, so that nothing is measured before all fit.
    wanted = p.ShapesOpen(model=p.ModelOpen(path=str(path)), choices=tuple(choices))
    entries = engine.request(wanted)
    handles = [entry.document for entry in entries]
    if session is not None:
        engine.request(p.SessionContinue(document=handles[0], path=str(session)))
    ends_at = began + settings.budget_s - spent_s
    runs: list[Run] = []
    with Scratch(None if out is None else resolve(Path(out)).parent) as scratch:
        folders = [scratch / str(number) for number in range(len(choices))]
        # What a machine finds out once (its toolchains) is no cost of the first shape alone: the
        # budget is shared out when that is done.
        with _in_sentences(choices[0]):
            first = msgspec.structs.replace(settings, shapes=entries[0].model.shapes)
            engine.request(p.Enumerate(document=handles[0], settings=first))
        sharing = None
        try:
            for number, (choice, handle) in enumerate(zip(choices, handles, strict=True)):
                mine = msgspec.structs.replace(
                    settings,
                    shapes=entries[number].model.shapes,
                    budget_s=budget_share_s(runs, ends_at - time.monotonic(), len(choices)),
                    name=choice.text,
                )
                engine.tell(handle, Log(text=f"For {choice.text}:"))  # what is told next is of it
                with _in_sentences(choice):
                    answers.set_pins(engine.document(handle), pins)
                    folder = None if out is None else str(folders[number])
                    runs.append(engine.run(p.RunStart(document=handle, settings=mine, out=folder)))
            if out is not None:
                dims = [choice.dims for choice in choices]
                menu = [state.name for state in runs[0].toolchains if state.available]
                own = fastest(Path(path), folders, menu) if others else None
                batch = call_in_child(PROOF, (str(path), tuple(dims[0])), timeout_s=WORK_S)
                sharing = combine_artifacts(folders, dims, Path(out), own, batch)
        except CollageError:
            _save(engine, handles[0], session)
            raise
    graphs = [engine.document(handle).document.graph for handle in handles]
    rows = tuple(map(shape_row, choices, graphs, runs))
    for run in runs:
        run.shapes, run.sharing = list(rows), sharing
        run.artifact = None if out is None else str(out)
    not_saved = _save(engine, handles[0], session)
    return ShapesPlaced(
        runs=tuple(runs),
        rows=rows,
        artifact=None if out is None else str(out),
        sharing=sharing,
        session=session if not_saved is None else None,
        not_saved=not_saved,
    )


@contextlib.contextmanager
def _in_sentences(choice: ShapeChoice) -> Iterator[None]:
    """Add a shape to the sentence of whatever fails inside."""
    try:
        yield
    except CollageError as error:
        if error.args:
            error.args = (f"{choice.text}: {error.args[0]}", *error.args[1:])
        raise


def budget_share_s(runs: Sequence[Run], left_s: float, count: int) -> float:
    """Return the seconds of budget of the next of several runs.

    Args:
        runs: Those that have ended.
        left_s: What is left of the budget of all of them.
        count: How many they are to be.
    """
    stopped = any(run.ended == "stopped" for run in runs)
    return STOPPED_BUDGET_S if stopped else max(STOPPED_BUDGET_S, left_s / (count - len(runs)))


def _save(engine: Engine, handle: str, session: Path | None) -> SessionError | None:
    """Write the session of all shapes; the reason, if that is not possible."""
    if session is None:
        return None
    try:
        engine.request(p.SessionSave(document=handle, path=str(session)))
    except SessionError as error:
        return error
    return None
