"""``collage farm``: serve a farm, join one, look at it, stop it; and placing many models on one."""

from __future__ import annotations

import argparse
import shlex
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from collage_engine.api import Session
from collage_engine.cli.interrupts import interruptible_engine
from collage_engine.cli.output import print_json
from collage_engine.cli.print_run import run_document
from collage_engine.cli.screen import Columns, complain, say, show
from collage_engine.drawing.farm_words import placement_state
from collage_engine.drawing.formatting import counted, time_text
from collage_engine.records.errors import Cancelled, CollageError, UsageError
from collage_engine.records.farm import FarmStatus
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.service.engine import Engine
from collage_engine.wording import command_line as words


def farm(options: argparse.Namespace) -> int:
    """Do one of the actions on farms; the exit status."""
    actions = {"serve": _serve, "join": _join, "status": _status, "stop": _stop}
    return actions[options.action](options)


def _serve(options: argparse.Namespace) -> int:
    from collage_engine.farm.certificates import TRUST
    from collage_engine.farm.cluster import is_loopback, serve

    def started(address: str, certificate: Path | None, made: bool) -> None:
        say(words.FARM_SERVED.format(address=address))
        if certificate is None:
            say(words.WITHOUT_TLS.format(address=address))
        else:
            if made:
                say(words.CERTIFICATE_MADE.format(path=certificate))
                say(TRUST)
            if not is_loopback(urlsplit(address).hostname or ""):
                # One line, so that the certificate needs no second one to reach the machine.
                path = shlex.quote(str(certificate))
                say(words.MACHINE_JOINS_WITH.format(address=address, path=path))
            elif not is_loopback(options.host or ""):
                say(words.ONLY_THIS_MACHINE)
            say(words.THIS_MACHINE_JOINS_WITH.format(host=socket.gethostname(), address=address))
        sys.stdout.flush()

    serve(options.host, options.port, not options.no_tls, started)
    return 0


def _join(options: argparse.Namespace) -> int:
    from collage_engine.farm.certificates import take_certificate
    from collage_engine.farm.cluster import join

    certificate = Path(options.certificate) if options.certificate not in (None, "-") else None
    if options.certificate == "-":
        take_certificate(sys.stdin.buffer.read(MOST_CERTIFICATE_BYTES))
    return join(
        options.address,
        options.name or "",
        certificate=certificate,
        processors=options.processors,
        drift=options.drift,
        say=complain,
    )


MOST_CERTIFICATE_BYTES = 1 << 20
"""Bytes of a certificate that are read from standard input, 1 MiB; chosen: one takes 1 kB."""


def _status(options: argparse.Namespace) -> int:
    from collage_engine.farm.cluster import current_address
    from collage_engine.farm.farms import look_at

    status = look_at(options.address or current_address())
    if options.json:
        print_json(status)
    else:
        print_status(status)
    return 0


def _stop(options: argparse.Namespace) -> int:
    from collage_engine.farm.cluster import current_address, stop

    address = options.address or current_address()
    machines = stop(address)
    say(words.FARM_STOPPED.format(address=address, machines=counted(machines, "machine")))
    return 0


def print_status(status: FarmStatus) -> None:
    """Print a farm's machines, pools, placements and last error."""
    say(f"farm {status.address}, {counted(status.queued, 'waiting task')}", style="bold")
    what = "doing, or why"
    machines = Columns("machine", "state", "pool", "tasks done", what, cut=(what,))
    for machine in status.machines:
        about = "; ".join(filter(None, (machine.doing, machine.reason)))
        machines.add(machine.name, machine.state, machine.pool, str(machine.done), about)
    show(machines.table)
    for pool in status.pools:
        why = f" ({pool.reason})" if pool.reason else ""
        count = counted(len(pool.machines), "machine")
        say(f"pool {pool.name}: {pool.description}, {count}{why}")
    for one in status.placements:
        state = placement_state(one)
        parts = [state, one.machine and f"on {one.machine}", one.reason]
        measured = words.MEASURED_BY_OTHERS.format(groups=counted(one.measured, "group"))
        say(f"{one.model}: {', '.join(filter(None, parts))}; {one.queued} waiting, {measured}")
    if status.last_error:
        say(f"last error: {status.last_error}", style="yellow")


def place_many(options: argparse.Namespace, settings: RunSettings) -> int:
    """Place several models over one farm; each gets a folder of its own in the output folder.

    Returns:
        0 where all were placed, 1 where one failed (a line says which and why).
    """
    if not settings.farm:
        raise UsageError("several models are placed over a farm only: name it with --farm")
    if options.session or options.pin:
        raise UsageError("--session and --pin are of one model: place them one by one")
    stems = [Path(model).stem for model in options.model]
    if len(set(stems)) < len(stems):
        raise UsageError("two of the models have the same name, and so would their folders")
    out = Path(options.output)
    runs: dict[str, Run] = {}
    failures: dict[str, CollageError] = {}
    with interruptible_engine(keep=True) as engine, ThreadPoolExecutor(len(stems)) as threads:

        def place(model: str) -> None:
            try:
                runs[model] = _place_one(engine, model, settings, out / Path(model).stem)
            except CollageError as error:
                failures[model] = error
                complain(f"collage: {model}: {error}")
            else:
                if not options.json:
                    say(_in_a_line(model, runs[model]))

        for waiting in [threads.submit(place, model) for model in options.model]:
            waiting.result()
    if options.json:
        documents: dict[str, Any] = {model: run_document(run) for model, run in runs.items()}
        print_json({"runs": documents, "failed": {m: str(e) for m, e in failures.items()}})
    if any(isinstance(error, Cancelled) for error in failures.values()):
        return Cancelled.exit_status
    return 1 if failures else 0


def _place_one(engine: Engine, model: str, settings: RunSettings, out: Path) -> Run:
    from collage_engine.artifact.artifact import check_target_folder

    check_target_folder(out)
    session = Session.of_model(engine, model, settings.shapes)
    return session.place(settings, out=out)


def _in_a_line(model: str, run: Run) -> str:
    took = run.placement.measured_us if run.placement is not None else None
    time = f" with {time_text(took)}" if took is not None else ""
    return f"{model}: {run.winner} wins{time} on {run.measured_on}, {run.artifact or 'no artifact'}"
