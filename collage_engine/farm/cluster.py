"""Starts the processes of a farm: a scheduler, and a machine's worker."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collage_engine.farm.carrier import (
    CONNECT_S,
    LOOPBACK_HTTP,
    Address,
    apply_settings,
    connect,
    why_not_started,
    workers_of,
)
from collage_engine.farm.certificates import (
    INSTALL,
    certificate_path,
    farm_folder,
    own_certificate,
    security,
)
from collage_engine.farm.worker_process import address_towards, leave
from collage_engine.machine.device import allowed_processors
from collage_engine.records.errors import FarmError, UsageError
from collage_engine.records.files import write_atomically

_ENGINE_FOLDER = str(Path(__file__).resolve().parents[2])
"""The folder that holds the package of the engine which runs now."""

_LOG = logging.getLogger(__name__)

AGAIN_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before a worker that has ended is started again, the last one from then on; chosen."""
STEADY_S = 60.0
"""Seconds that a worker must have run for the next pause to be the first one again; chosen."""
STOPPED = 0
"""Status of a worker that left the farm because it was asked to; it is not started again."""
CURRENT = "current.json"
"""File, in the folder of farms, with the address of this user's own scheduler."""


def own_address() -> str:
    """Return an address of this machine that others can reach; 127.0.0.1 where there is none."""
    return address_towards("tls://192.0.2.1:9")  # an address for documentation (RFC 5737)


def current_address() -> str:
    """Return the address of the farm that this user serves here; UsageError: there is none."""
    try:
        return str(json.loads((farm_folder() / CURRENT).read_text())["address"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError("name the farm's address: no farm is served on this machine") from None


def serve(
    host: str | None, port: int, tls: bool, started: Callable[[str, Path | None, bool], None]
) -> None:
    """Run a scheduler until it is stopped.

    Args:
        host: Address to listen on; None: one that others can reach, or loopback without TLS.
        port: Port to listen on; 0: any.
        tls: Whether connections are encrypted.
        started: Called with the address, the certificate, and whether that was just made.

    Raises:
        UsageError: Without TLS it would listen on another address than loopback.
        FarmError: It cannot be started.
    """
    if not tls:
        host = host or "127.0.0.1"
        if not is_loopback(host):
            raise UsageError(
                f"without TLS a farm listens on loopback only, and {host} is another address"
            )
    certificate, made = own_certificate() if tls else (None, False)
    try:
        from distributed import Scheduler
    except ImportError as error:
        raise FarmError(f"a farm needs the package distributed: {INSTALL}") from error
    apply_settings()
    scheme = "tls" if tls else "tcp"

    async def work() -> None:
        options: dict[str, Any] = {"security": security(certificate)} if certificate else {}
        try:
            scheduler = await Scheduler(
                host=f"{scheme}://{host or own_address()}",
                port=port,
                dashboard=False,
                dashboard_address=LOOPBACK_HTTP,
                **options,
            )
        except (OSError, RuntimeError, ValueError) as error:
            reason = why_not_started(error)
            raise FarmError(f"no farm can be served on port {port}: {reason}") from error
        write_atomically(farm_folder() / CURRENT, json.dumps({"address": scheduler.address}))
        started(scheduler.address, certificate, made)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(
                number, lambda: loop.create_task(scheduler.close(reason="stopped by its user"))
            )
        await scheduler.finished()

    try:
        asyncio.run(work())
    finally:
        with contextlib.suppress(OSError):
            (farm_folder() / CURRENT).unlink()


def is_loopback(host: str) -> bool:
    """Return whether an address is one that only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def join(
    address: str,
    name: str,
    *,
    certificate: Path | None = None,
    processors: Sequence[int] = (),
    drift: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Be a machine of a farm until the farm stops or this process gets a signal to end.

    The worker is a process of its own, below this one: it is started again when it dies, and when
    the scheduler was lost, with growing pauses.

    Args:
        address: The scheduler's.
        name: What the farm calls this machine; empty: its host's name.
        certificate: The farm's; None: this user's own.
        processors: Which of its processors it may use; empty: all that this process may.
        drift: Share of drift of the speed probe from which on it pauses; None: the farm's.
        say: Takes sentences for the user.

    Returns:
        The exit status.
    """
    where = Address(address, certificate)
    if where.encrypted:
        security(certificate or certificate_path())  # refuses what cannot work, with a sentence
    if processors:
        wrong = set(processors) - set(allowed_processors())
        if wrong:
            raise UsageError(f"this process may not use the processors {sorted(wrong)}")
        os.sched_setaffinity(0, processors)
    name = name or platform.node()
    # The worker runs the code that this process runs, whatever lies in the working folder.
    places = [_ENGINE_FOLDER, os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "COLLAGE_FARM_NAME": name,
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
    }
    if drift is not None:
        environment["COLLAGE_FARM_DRIFT"] = repr(drift)
    ending = threading.Event()
    child: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: object) -> None:
        ending.set()
        if child is not None:
            child.terminate()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    command = [sys.executable, "-P", "-m", "collage_engine.farm.worker_process", address, name]
    command += [str(certificate)] if certificate else []
    failures = 0
    while not ending.is_set():
        began = time.monotonic()
        child = subprocess.Popen(command, env=environment, start_new_session=True)
        status = child.wait()
        if status == STOPPED or ending.is_set():
            say(f"{name} has left the farm")
            return 0
        failures = 0 if time.monotonic() - began > STEADY_S else failures
        pause_s = AGAIN_S[min(failures, len(AGAIN_S) - 1)]
        failures += 1
        say(f"the worker of {name} has ended with status {status}: starting it again")
        ending.wait(pause_s)
    return 0


def stop(address: str, certificate: Path | None = None) -> int:
    """End a farm: its workers leave and its scheduler ends; return the number of workers."""
    client = connect(Address(address, certificate))
    try:
        workers = workers_of(client)
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise FarmError(f"the scheduler {address} gives no answer that can be read") from error
    with contextlib.suppress(Exception):
        client.run(leave, on_error="ignore")
    with contextlib.suppress(Exception):
        client.shutdown()
    with contextlib.suppress(Exception):
        client.close(timeout=CONNECT_S)
    return len(workers)
