"""The task of a farm: one whole run of ``collage place`` on the machine that gets it.

The worker's process only watches: the run is done by the engine's own child processes, as on a
machine that is in no farm. What travels is typed: a request and an answer as MessagePack.
"""

from __future__ import annotations

import io
import platform
import tarfile
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import collage_engine
from collage_engine import api
from collage_engine.records.errors import CollageError
from collage_engine.records.event import Event, Log, Provisional, Stage
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.typed import convert
from collage_engine.store.measurement import now_text
from collage_engine.store.store import Store

LOOK_S = 0.1
"""Seconds between two looks at whether the task is still wanted: a cancel must be answered within a
second."""


class PlaceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model to be placed."""

    model: str
    """Name of the ONNX file."""
    files: dict[str, bytes]
    """Contents of the ONNX file and of those beside it that hold its weights, by relative path."""
    settings: RunSettings
    pins: tuple[str, ...] = ()
    """Pins, written as for ``collage place --pin``."""
    topic: str
    """Name under which the machine says what it is doing."""
    version: str = collage_engine.__version__


class PlaceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    machine: str
    """Name of the machine's host."""
    run: Run | None = None
    """The document of the run; None: it failed."""
    session: bytes = b""
    """The session's file."""
    artifact: bytes = b""
    """The artifact's folder as a tar archive; empty: there is none."""
    measurements: bytes = b""
    """What the machine measured meanwhile, as ``collage store export`` writes it."""
    failure: str = ""
    """Why there is no run, or no artifact, as a sentence."""


class FarmEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine is doing for a task."""

    model: str
    machine: str
    text: str


def place(message: bytes) -> bytes:
    """Do a run on this machine; Dask calls it by name on a worker.

    Args:
        message: A ``PlaceRequest`` as MessagePack.

    Returns:
        A ``PlaceAnswer`` as MessagePack. Nothing is raised, since Dask would pickle it.
    """
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def is_wanted() -> bool:
        # The task's own state tells of a cancelled future, and of a dead client or scheduler.
        state = worker.state.tasks.get(key)
        return state is not None and state.state == "executing" and worker.status.name == "running"

    host = platform.node()
    try:
        request = convert(msgspec.msgpack.decode(message), PlaceRequest)
    except (msgspec.MsgspecError, CollageError) as error:
        return msgspec.msgpack.encode(PlaceAnswer(machine=host, failure=f"the request: {error}"))

    def tell(text: str) -> None:
        event = FarmEvent(model=request.model, machine=str(worker.name), text=text)
        worker.log_event(request.topic, msgspec.to_builtins(event))

    return msgspec.msgpack.encode(run_request(request, is_wanted, tell))


def run_request(
    request: PlaceRequest, is_wanted: Callable[[], bool], tell: Callable[[str], None]
) -> PlaceAnswer:
    """Place the model of a request, and gather what is to travel back.

    Args:
        request: The model and the settings.
        is_wanted: Asked ten times a second; the run is stopped when it says no.
        tell: Takes a line for each stage and remark of the run.
    """
    host = platform.node()
    if request.version != collage_engine.__version__:
        return PlaceAnswer(
            machine=host,
            failure=f"it runs Collage Explorer {collage_engine.__version__}, and version "
            f"{request.version} asked: install the same version on all machines of a farm",
        )
    began = now_text()
    with tempfile.TemporaryDirectory(prefix="collage-farm-") as name:
        folder = Path(name)
        answer: dict[str, Any] = {}
        try:
            _place_in(folder, request, is_wanted, tell, answer)
        except CollageError as error:
            answer["failure"] = str(error)
        rows = folder / "measurements"
        with Store() as store:
            store.export(rows, since=began)
        answer["measurements"] = rows.read_bytes()
        return PlaceAnswer(machine=host, **answer)


def _place_in(
    folder: Path,
    request: PlaceRequest,
    is_wanted: Callable[[], bool],
    tell: Callable[[str], None],
    answer: dict[str, Any],
) -> None:
    """Do the run in a folder, and note what it made in the answer as soon as it is there."""
    place = (folder / "model").resolve()
    for relative, content in request.files.items():
        target = (place / relative).resolve()
        if not target.is_relative_to(place):
            raise CollageError(f"{relative} leads out of the model's folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    model, settings = place / request.model, request.settings
    out, saved = folder / "out", folder / "run.collage"
    with api.open_model(model, shapes=settings.shapes, listener=_teller(tell)) as session:
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(LOOK_S):
                if not is_wanted():
                    session.cancel()
                    return

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            session.pin(*request.pins)
            answer["run"] = session.place(settings, out=out)
        except CollageError:
            if session.runs:  # the artifact could not be written, and the run is there
                answer["run"] = session.runs[-1]
            raise
        finally:
            ended.set()
            if session.runs:
                session.save(saved)
                answer["session"] = saved.read_bytes()
    answer["artifact"] = packed(out)


def packed(folder: Path) -> bytes:
    """Return a folder as a tar archive in memory."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.add(folder, arcname=".")
    return stream.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Write the files of ``packed`` into a folder, which may be there.

    Raises:
        tarfile.FilterError: A file would lie outside of the folder, or is none that data may be.
    """
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        opened.extractall(folder, filter="data")


def _teller(tell: Callable[[str], None]) -> Callable[[Event], None]:
    """Return a listener of a run's events that says each stage and remark in a line."""

    def listen(event: Event) -> None:
        match event:
            case Stage(done=False):
                tell(event.stage)
            case Log():
                tell(event.text)
            case Provisional():
                tell("there is a first answer, or a better one")
            case _:  # progress comes several times a second, and costs by the thousand
                pass

    return listen
