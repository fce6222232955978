"""The task of a farm: one whole run of ``collage place`` on the machine that gets it.

The worker's process only watches: the run is done by the engine's own child processes, as on a
machine that is in no farm. Dask pickles what travels.
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

import collage_engine
from collage_engine.farm.several_runs import place_for_throughput
from collage_engine.records import protocol as p
from collage_engine.records.event import Event, Log, Stage
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.service import answers
from collage_engine.service.engine import Engine
from collage_engine.store.store import Store, now_text
from collage_engine.support.errors import CollageError

LOOK_S = 0.1
"""Seconds between two looks at whether the task is still wanted: a cancel must be answered within a
second."""


class FarmTask(msgspec.Struct, frozen=True, kw_only=True):
    """A model to be placed on a farm."""

    name: str
    """What the task is called, and its folder among the artifacts."""
    model: Path
    """The ONNX file; on the machine that places it only its name counts."""
    settings: RunSettings
    """The options of its run, the sizes of open shapes among them."""
    pins: tuple[str, ...] = ()
    """Pins, written as for ``collage place --pin``."""
    version: str = collage_engine.__version__


class PlaceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    machine: str
    """Name of the machine's host."""
    run: Run | None = None
    """The document of the run; None: it failed."""
    session: bytes = b""
    """The session's file."""
    artifact: dict[str, bytes] = {}
    """Contents of the artifact's files by path in its folder; empty: there is none."""
    measurements: bytes = b""
    """What the machine measured meanwhile, as ``collage store export`` writes it."""
    failure: str = ""
    """Why there is no run, or no artifact, as a sentence."""


def place(task: FarmTask, files: dict[str, bytes], topic: str) -> PlaceAnswer:
    """Do a run on this machine; Dask calls it by name on a worker.

    Args:
        task: The model and its settings.
        files: Contents of the ONNX file and of those beside it that hold its weights, by relative
            path.
        topic: Name under which the machine says what it is doing.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def is_wanted() -> bool:
        # The task's own state tells of a cancelled future, and of a dead client or scheduler.
        state = worker.state.tasks.get(key)
        return state is not None and state.state == "executing" and worker.status.name == "running"

    def tell(text: str) -> None:
        worker.log_event(topic, f"{task.model.name} on {worker.name}: {text}")

    return run_task(task, files, is_wanted, tell)


def run_task(
    task: FarmTask,
    files: dict[str, bytes],
    is_wanted: Callable[[], bool],
    tell: Callable[[str], None],
) -> PlaceAnswer:
    """Place a model, and gather what is to travel back.

    Args:
        task: The model and its settings.
        files: The model's files, by relative path.
        is_wanted: Asked ten times a second; the run is stopped when it says no.
        tell: Takes a line for each stage and remark of the run.
    """
    host = platform.node()
    if task.version != collage_engine.__version__:
        return PlaceAnswer(
            machine=host,
            failure=f"it runs Collage Explorer {collage_engine.__version__}, and version "
            f"{task.version} asked: install the same version on all machines of a farm",
        )
    began = now_text()
    answer: dict[str, Any] = {}

    def listen(event: Event) -> None:
        if isinstance(event, Stage) and not event.done:
            tell(event.stage)
        elif isinstance(event, Log):
            tell(event.text)

    with tempfile.TemporaryDirectory(prefix="collage-farm-") as name:
        folder = Path(name)
        out, saved, rows = folder / "out", folder / "run.collage", folder / "measurements"
        model, settings = folder / "model" / task.model.name, task.settings
        try:
            write_files(model.parent, files)
            with contextlib.closing(Engine(lambda _, event: listen(event))) as engine:
                opening = p.ModelOpen(path=str(model), shapes=settings.shapes)
                handle = engine.request(opening).document
                opened = engine.document(handle)
                request = p.RunStart(document=handle, settings=settings, out=str(out))
                run = place_for_throughput if settings.objective == "throughput" else Engine.run
                try:
                    answers.set_pins(opened, task.pins)
                    with _stopped_unless(is_wanted, engine):
                        run(engine, request)
                finally:
                    if opened.document.runs:  # also where the artifact could not be written
                        answer["run"] = opened.document.runs[-1]
                        engine.request(p.SessionSave(document=handle, path=str(saved)))
                        answer["session"] = saved.read_bytes()
            written = [file for file in out.rglob("*") if file.is_file()]
            answer["artifact"] = {str(f.relative_to(out)): f.read_bytes() for f in written}
        except CollageError as error:
            answer["failure"] = str(error)
        with Store() as store:
            store.export(rows, since=began)
        return PlaceAnswer(machine=host, measurements=rows.read_bytes(), **answer)


@contextlib.contextmanager
def _stopped_unless(is_wanted: Callable[[], bool], engine: Engine) -> Iterator[None]:
    """Stop what an engine does inside the block, as soon as it is not wanted any more."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_S):
            if not is_wanted():
                engine.cancel()
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files with these contents, by path relative to a folder, which may be there.

    Raises:
        CollageError: A file would lie outside of the folder.
    """
    for relative, content in files.items():
        target = (folder / relative).resolve()
        if not target.is_relative_to(folder.resolve()):
            raise CollageError(f"{relative} leads out of the folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
