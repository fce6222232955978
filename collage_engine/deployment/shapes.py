"""Placing a model for several shapes: a run for each, and one artifact with an entry for each."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from collage_engine.artifact.artifact import check_target_folder
from collage_engine.artifact.combine import combine_artifacts, sharing_of
from collage_engine.machine.scratch import Scratch
from collage_engine.records.errors import CollageError, ModelError, SessionError, UsageError
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import ShapeChoice, ShapeRow, Sharing
from collage_engine.service import protocol as p
from collage_engine.service.engine import Engine
from collage_engine.session.earlier import earlier_session
from collage_engine.session.shape_rows import shape_row

_LOG = logging.getLogger(__name__)

STOPPED_BUDGET_S = 1.0
"""Seconds of budget for each shape that is left when the user ends the run with what it has;
chosen: the first stage alone, which times each toolchain on the whole model, takes about that."""

Sizes = dict[str, tuple[int, ...]]
"""Shapes of inputs by name, in elements."""


@dataclass(frozen=True)
class ShapesPlaced:
    """What came of placing a model for several shapes."""

    runs: tuple[Run, ...]
    """In the order of the choices; each holds the table of all of them."""
    rows: tuple[ShapeRow, ...]
    artifact: str | None
    sharing: Sharing | None
    sessions: tuple[Path, ...] = ()
    """The session files that were written, one for each shape."""
    not_saved: SessionError | None = None
    """Why one of them could not be written; None: all were, or none was asked for."""

    def document(self) -> dict[str, Any]:
        """What ``collage place --json`` prints, without what the runs say themselves."""
        return {
            "shapes": [{**msgspec.to_builtins(row), "gain": row.gain} for row in self.rows],
            "artifact": self.artifact,
            "sharing": msgspec.to_builtins(self.sharing),
            "sessions": [str(path) for path in self.sessions],
        }


def place_shapes(
    engine: Engine,
    path: str | Path,
    choices: Sequence[ShapeChoice],
    settings: RunSettings,
    *,
    out: str | Path | None = None,
    nearest: bool = False,
    prepare: Callable[[str], None] | None = None,
    session: Path | None = None,
    spent_s: float = 0.0,
) -> ShapesPlaced:
    """Place a model for several shapes and write one artifact for all of them.

    The runs go one after the other on the same store, so work that is equal in two shapes is
    measured once. What is left of the budget is shared out evenly among the shapes that are left.

    Args:
        engine: Does the runs.
        path: The model's file.
        choices: The shapes, at least two.
        settings: The options of all runs; the budget is that of all of them together.
        out: Folder of the artifact; None: nothing is exported.
        nearest: Whether the artifact pads inputs, along dimensions where that is harmless.
        prepare: Is called with each document before its run, such as to set its pins.
        session: Where each shape's session is written, with the shape in the file's name; runs that
            such a file holds are kept. None: nowhere.
        spent_s: Seconds of the budget that were spent before.

    Returns:
        The runs with their table, in the order of the choices.

    Raises:
        UsageError: A choice does not fit the model, or a session's file holds something else or
            cannot be written.
        CollageError: A run failed; the sentence names its shape. No artifact is written.
    """
    began = time.monotonic()
    if out is not None:
        check_target_folder(Path(out))
    shapes = engine.distinct_input_shapes(path, choices)
    places = _session_places(choices, session)
    handles = _open_all(engine, path, choices, shapes)
    for handle, place in zip(handles, places, strict=False):
        engine.document(handle).continue_from(place)
    runs: list[Run] = []
    parent = Path(out).absolute().parent if out is not None else None
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with Scratch(parent) as scratch:
        folders = [scratch / str(number) for number in range(len(choices))]
        if not settings.farm:
            # What a machine finds out once (its toolchains, its peaks) is no cost of the first
            # shape alone: the budget is shared out when that is done.
            with _in_sentences(choices[0]):
                engine.enumerate(handles[0], msgspec.structs.replace(settings, shapes=shapes[0]))
        for number, (choice, handle) in enumerate(zip(choices, handles, strict=True)):
            left_s = settings.budget_s - spent_s - (time.monotonic() - began)
            stopped = any(run.ended == "stopped" for run in runs)
            share = STOPPED_BUDGET_S if stopped else left_s / (len(choices) - number)
            mine = msgspec.structs.replace(
                settings,
                shapes=shapes[number],
                budget_s=max(STOPPED_BUDGET_S, share),
                name=choice.text,
            )
            _LOG.info("placing %s for %s", path, choice.text)
            with _in_sentences(choice), _saved_after_failure(engine, handles, places):
                if prepare is not None:
                    prepare(handle)
                folder = None if out is None else str(folders[number])
                runs.append(engine.run(handle, mine, out=folder))
        graphs = [engine.document(handle).document.graph for handle in handles]
        rows = tuple(map(shape_row, choices, graphs, runs))
        sharing = None
        if out is not None:
            dims = [choice.dims for choice in choices]
            manifest = combine_artifacts(folders, dims, Path(out), nearest=nearest)
            sharing = sharing_of(manifest)
    for run in runs:
        run.shapes, run.sharing = list(rows), sharing
        run.artifact = None if out is None else str(out)
    sessions, not_saved = _save_all(engine, handles, places)
    return ShapesPlaced(
        runs=tuple(runs),
        rows=rows,
        artifact=None if out is None else str(out),
        sharing=sharing,
        sessions=sessions,
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


@contextlib.contextmanager
def _saved_after_failure(
    engine: Engine, handles: Sequence[str], places: Sequence[Path]
) -> Iterator[None]:
    """Write the sessions also where a run inside fails or is cancelled."""
    try:
        yield
    except CollageError:
        _save_all(engine, handles, places)
        raise


def _open_all(
    engine: Engine, path: str | Path, choices: Sequence[ShapeChoice], shapes: Sequence[Sizes]
) -> list[str]:
    """Open the model with each of the shapes, so that nothing is measured before all fit.

    Raises:
        ModelError: A shape contradicts what the model computes.
    """
    handles = []
    for choice, sizes in zip(choices, shapes, strict=True):
        try:
            opened = engine.model_open(p.ModelOpen(path=str(path), shapes=sizes))
        except (ModelError, UsageError) as error:
            raise type(error)(f"{choice.text} does not fit the model: {error}") from error
        handles.append(opened.document)
    return handles


def session_path(path: Path, choice: ShapeChoice) -> Path:
    """Where a shape's session is kept: ``model.collage`` → ``model-batch=4.collage``."""
    text = choice.text.replace(" ", "-").replace("/", "_")
    return path.with_name(f"{path.stem}-{text}{path.suffix}")


def _session_places(choices: Sequence[ShapeChoice], session: Path | None) -> tuple[Path, ...]:
    """The session's file of each shape, found fit to be written; none without a file's name.

    Raises:
        UsageError: Two shapes have one file, or one holds something else or cannot be written.
    """
    if session is None:
        return ()
    places = tuple(session_path(session, choice) for choice in choices)
    for number, place in enumerate(places):
        if place in places[:number]:
            raise UsageError(f"two shapes would have the same session {place}")
        earlier_session(place)
    return places


def _save_all(
    engine: Engine, handles: Sequence[str], places: Sequence[Path]
) -> tuple[tuple[Path, ...], SessionError | None]:
    """Write the sessions of all shapes; those that were written, and why another was not."""
    written: list[Path] = []
    failed: SessionError | None = None
    for handle, place in zip(handles, places, strict=False):
        try:
            engine.session_save(p.SessionSave(document=handle, path=str(place)))
        except SessionError as error:
            failed = failed or error
        else:
            written.append(place)
    return tuple(written), failed
