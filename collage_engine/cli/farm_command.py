"""``collage farm``: serve a farm and join one; and placing models on the machines of one."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from collage_engine.cli.output import print_json
from collage_engine.cli.print_run import print_run, run_document
from collage_engine.cli.screen import ERR, complain, say
from collage_engine.records.placement import Run
from collage_engine.records.protocol import ShapesResolve
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import ShapeChoice
from collage_engine.support.errors import Cancelled, CollageError, FarmError, UsageError
from collage_engine.wording.amounts import time_text

if TYPE_CHECKING:
    from collage_engine.farm.task import FarmTask


def farm(options: argparse.Namespace) -> NoReturn:
    """Serve a farm or join one: this process becomes Dask's."""
    if options.action == "serve":
        _serve(options)
    _join(options)


def _serve(options: argparse.Namespace) -> NoReturn:
    from collage_engine.farm.processes import TRUST, certificate_path, make_certificate, serve

    certificate = certificate_path()
    if make_certificate(certificate):
        say(f"{certificate} is the farm's new certificate: {TRUST}")
    from distributed.utils import get_ip  # behind what says how it is installed

    host = options.host or get_ip()  # type: ignore[no-untyped-call]
    address = f"tls://{host}:{options.port}"
    path = shlex.quote(str(certificate))
    say(f"a machine joins with: ssh HOST collage farm join {address} --certificate - < {path}")
    sys.stdout.flush()
    serve(host, options.port, certificate)


def _join(options: argparse.Namespace) -> NoReturn:
    from collage_engine.farm.processes import certificate_path, join

    certificate = certificate_path()
    if options.certificate == "-":
        if certificate.exists():
            raise UsageError(f"{certificate} is there already: remove it to join another farm")
        certificate.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        certificate.touch(mode=0o600)
        certificate.write_bytes(sys.stdin.buffer.read())
    elif options.certificate:
        certificate = Path(options.certificate)
    join(options.address, options.name or "", certificate, complain)


def place_on_farm(
    options: argparse.Namespace, settings: RunSettings, choices: Sequence[ShapeChoice]
) -> int:
    """Place models on the machines of a farm: a task for each model and shape.

    One model and shape goes to the output folder itself; several go to folders in it, beside their
    sessions.

    Returns:
        0 where all were placed, 1 where one failed (a line says which and why).
    """
    from collage_engine.farm.client import Farm, keep
    from collage_engine.farm.processes import certificate_path
    from collage_engine.store.store import Store

    tasks = list(_tasks(options, settings, choices))
    several, out = len(tasks) > 1, Path(options.output)
    if several and options.session:
        raise UsageError("--session is of one model and shape: each has its own in the folder")

    def places(task: FarmTask) -> tuple[Path, Path | None]:
        """Return the folder of a task's artifact, and its session; None: it is not kept."""
        if several:
            return out / task.name, out / f"{task.name}.collage"
        return out, Path(options.session) if options.session else None

    _make_ready([places(task) for task in tasks])
    runs: dict[str, Run] = {}
    failures: dict[str, str] = {}

    def tell(line: str) -> None:
        ERR.print(line, markup=False)

    ended = 0
    try:
        with Farm(options.farm, certificate_path()) as connected, Store() as store:
            for task, answer in connected.place(tasks, kind=options.kind, on_event=tell):
                folder, session = places(task)
                failure = answer.failure
                try:
                    keep(answer, store, session, folder)
                except CollageError as error:
                    failure = str(error)
                if answer.run is not None:
                    runs[task.name] = answer.run
                    if not options.json:
                        say(_in_a_line(task, answer.run)) if several else print_run(answer.run)
                if failure:
                    failures[task.name] = failure
                    where = f" on {answer.machine}" if answer.machine else ""
                    complain(f"collage: {task.name}{where}: {failure}")
    except FarmError as error:
        complain(f"collage: {error}")
        ended = error.exit_status
    except KeyboardInterrupt:
        complain(f"collage: interrupted; {len(runs)} of {len(tasks)} had ended and are kept")
        ended = Cancelled.exit_status
    if options.json:
        documents: dict[str, Any] = {name: run_document(run) for name, run in runs.items()}
        single: dict[str, Any] = next(iter(documents.values()), {})  # empty where it failed
        print_json({"runs": documents, "failed": failures} if several else single)
    return ended or bool(failures)


def _make_ready(places: Sequence[tuple[Path, Path | None]]) -> None:
    """Make the folder that several tasks share, and find out whether all can be written.

    Args:
        places: The folder of each artifact, and the file of its session; None: it is not kept.

    Raises:
        ArtifactError: A folder cannot be written, or holds something else than an artifact.
        UsageError: A session cannot be written, or would replace a file of another kind.
    """
    from collage_engine.artifact.artifact import check_target_folder
    from collage_engine.store.session_file import earlier_session

    for folder, session in places:
        check_target_folder(folder)
        if len(places) > 1:
            folder.parent.mkdir(parents=True, exist_ok=True)
        if session is not None:
            earlier_session(session)


def _tasks(
    options: argparse.Namespace, settings: RunSettings, choices: Sequence[ShapeChoice]
) -> Iterator[FarmTask]:
    """Yield a task for each model and shape.

    Raises:
        UsageError: Options are of one model or cannot be kept on a farm, or names are not distinct.
    """
    from collage_engine.farm.task import FarmTask
    from collage_engine.service.engine import interruptible_engine

    if options.others or options.calls:
        raise UsageError("--others and --from-calls make one artifact: place without --farm")
    if len(options.model) > 1 and (options.pin or choices):
        raise UsageError("--pin, --dim and --shapes are of one model: place them one by one")
    stems = [Path(model).stem for model in options.model]
    if len(set(stems)) < len(stems):
        raise UsageError("two of the models have the same name, and so would their folders")
    pins = tuple(options.pin)
    for name, model in zip(stems, options.model, strict=True):
        if not choices:
            yield FarmTask(name=name, model=Path(model), settings=settings, pins=pins)
            continue
        with interruptible_engine() as engine:
            shapes = engine.request(ShapesResolve(path=model, choices=tuple(choices)))
        for choice, sizes in zip(choices, shapes, strict=True):
            chosen = msgspec.structs.replace(settings, shapes=sizes)
            named = f"{name}-{choice.text.replace(' ', '')}"
            yield FarmTask(name=named, model=Path(model), settings=chosen, pins=pins)


def _in_a_line(task: FarmTask, run: Run) -> str:
    took = run.placement.measured_us if run.placement is not None else None
    time = f" with {time_text(took)}" if took is not None else ""
    where = run.artifact or "no artifact"
    return f"{task.name}: {run.winner} wins{time} on {run.measured_on}, {where}"
