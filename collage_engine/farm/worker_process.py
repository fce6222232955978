"""Runs the process of a machine's worker, below ``collage farm join``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from collage_engine.machine.worker_child import PR_SET_PDEATHSIG, prctl

LOST = 75
"""Status of a worker that has lost its scheduler: it is started again (EX_TEMPFAIL, sysexits.h)."""
DEATH_TIMEOUT = "60s"
"""How long a worker looks for its scheduler at its start; chosen."""

NAME_TAKEN = "name taken"
"""What Dask's scheduler answers to a worker whose name another worker has."""

_leaving = False


def leave() -> None:
    """Note that the farm ends, so that this machine does not look for its scheduler again."""
    global _leaving
    _leaving = True


def main(address: str, name: str, certificate: str = "") -> int:
    """Be a worker until the scheduler is gone; the exit status."""
    from distributed import Worker

    from collage_engine.farm.carrier import LOOPBACK_HTTP, Address, apply_settings
    from collage_engine.farm.certificates import certificate_path, security
    from collage_engine.machine import logs

    end_with_parent()
    logs.configure(name="farm-worker")
    apply_settings()
    where = Address(address, Path(certificate) if certificate else None)
    options: dict[str, Any] = {}
    if where.encrypted:
        options["security"] = security(where.certificate or certificate_path())
    if where.is_file:
        options["scheduler_file"] = address
    else:
        options["scheduler_ip"] = address
        # Not on all addresses of this machine: on the one by which it reaches the scheduler.
        options["host"] = address_towards(address)

    async def work() -> None:
        worker = await Worker(
            name=name,
            nthreads=1,  # one measuring task at a time
            memory_limit=0,  # Dask would pause or restart it; children have limits of their own
            dashboard=False,
            dashboard_address=LOOPBACK_HTTP,
            local_directory=tempfile.gettempdir(),
            death_timeout=DEATH_TIMEOUT,
            **options,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: _end(worker, loop))
        await worker.finished()

    try:
        asyncio.run(work())
    except (OSError, TimeoutError, RuntimeError) as error:
        reason = why_not_joined(error, name)
        print(f"the farm {address} cannot be joined: {reason}", file=sys.stderr)
        return LOST
    return 0 if _leaving else LOST


def why_not_joined(error: Exception, name: str) -> str:
    """Returns why a worker did not start, from what Dask raises."""
    from collage_engine.farm.carrier import why_not_started

    reason = why_not_started(error)
    if NAME_TAKEN in reason:
        return (
            f"it has a machine that is called {name} already. Stop that one, or join under another "
            "name with --name"
        )
    if isinstance(error, TimeoutError):
        return "it does not answer, or has another certificate"
    return reason


def address_towards(scheduler: str) -> str:
    """Return this machine's address on the way to a scheduler (``tls://HOST:PORT``)."""
    parts = urlsplit(scheduler)
    with contextlib.suppress(OSError):
        family, kind, _, _, where = socket.getaddrinfo(
            parts.hostname, parts.port, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def end_with_parent() -> None:
    """Have the system end this process when its parent dies (Linux)."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(worker: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Leave in order; a second signal, or a task that does not end, is not waited for."""
    leave()
    loop.create_task(worker.close(timeout=2, reason="stopped by its user"))
    loop.call_later(5, os._exit, 0)


if __name__ == "__main__":
    # `leave` is found under the module's own name, not under __main__.
    from collage_engine.farm import worker_process

    status = worker_process.main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # a task's thread may still run
