"""Runs Dask's own scheduler and worker for a farm, and keeps the certificate of its members.

A person who holds it can run any code as the user of the scheduler, of every worker and of every
client, because Dask's messages carry pickled objects. A farm therefore belongs to people who would
give each other a login to these machines.
"""

from __future__ import annotations

import os
import platform
import re
import ssl
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from collage_engine.machine.device import device
from collage_engine.machine.folders import cache_folder
from collage_engine.support.errors import FarmError, UsageError
from collage_engine.support.files import hold_lock

if TYPE_CHECKING:
    from distributed.security import Security

VARIABLE = "COLLAGE_FARM_CERTIFICATE"
"""Environment variable with the path of a certificate other than the user's own."""
INSTALL = "pip install 'collage-explorer[farm]'"
TRUST = (
    "a person who holds this file can run any code on every machine of the farm; give it only to "
    "people to whom you would give a login"
)


def certificate_path() -> Path:
    """Return where this user's certificate of a farm lies, whether it is there or not."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else cache_folder() / "farm" / "certificate.pem"


def make_certificate(path: Path) -> bool:
    """Write a certificate with its key, if there is none; tell whether one was made.

    Raises:
        FarmError: It cannot be made or written.
    """
    dask_security = _dask_security()
    if path.exists():
        return False
    made: Any = dask_security.temporary()  # type: ignore[no-untyped-call]
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{made.tls_ca_file}\n{made.tls_client_key}\n")
    except OSError as error:
        raise FarmError(f"{path} cannot be written: {error.strerror}") from error
    return True


def security(path: Path) -> Security:
    """Return what Dask takes to use one certificate in the roles of client, worker and scheduler.

    Raises:
        FarmError: The file is missing or damaged, or others than the user may read it.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise FarmError(
            f"{path} cannot be read ({error.strerror}): a farm needs the certificate that `collage "
            f"farm serve` made; bring it here, or name it with {VARIABLE}"
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FarmError(f"others can read the key in {path}: run chmod 600 {path}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise FarmError(
            f"{path} holds no certificate with the key that belongs to it; copy it again from the "
            "machine that serves the farm"
        ) from error
    file = str(path)
    roles = ("client", "scheduler", "worker")
    files = {f"tls_{role}_{what}": file for role in roles for what in ("cert", "key")}
    return _dask_security()(require_encryption=True, tls_ca_file=file, **files)


def _dask_security() -> type[Security]:
    """Return Dask's class for certificates; FarmError says how it is installed."""
    try:
        import cryptography  # noqa: F401  (Dask makes certificates with it)
        from distributed.security import Security
    except ImportError as error:
        raise FarmError(f"a farm needs the packages of an extra: {INSTALL}") from error
    security: type[Security] = Security
    return security


LOST_MACHINES = 2
"""Machines that a task may lose before it is given up: a model that ends its machines must not end
them all."""
SETTINGS = {
    "DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(LOST_MACHINES),
    # A frozen machine is noticed after one to two times this; the default is five minutes.
    "DISTRIBUTED__SCHEDULER__WORKER_TTL": "20s",
    "DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s",
    # With these an idle worker takes 0.2 to 0.5 % of a core instead of 3.8 %.
    "DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "10s",
    "DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    "DISTRIBUTED__ADMIN__TICK__LIMIT": "30s",
}
"""Dask's settings, as its environment variables without the prefix ``DASK_``; measured in pairs
with the defaults on an idle machine of two cores."""
MACHINE = "machine"
"""The resource of which every worker has one, so that a machine does one run at a time."""


def kind_of_machine() -> str:
    """Return the resource that machines of one kind share: the processor, cores, in small letters.

    Runs whose times are to be compared with each other ask for machines of one kind.
    """
    about = f"{device().description} {device().threads} cores"
    return re.sub(r"[^a-z0-9]+", "-", about.lower()).strip("-")


def serve(host: str, port: int, certificate: Path) -> NoReturn:
    """Become a scheduler, which runs until it is stopped.

    Args:
        host: The address to listen on.
        port: The port to listen on.
        certificate: The farm's.

    Raises:
        FarmError: There is no certificate to use.
    """
    security(certificate)
    # Even without a dashboard Dask opens an HTTP server, by default on all addresses without TLS.
    options = ["--host", f"tls://{host}", "--port", str(port), "--dashboard-address", "127.0.0.1:0"]
    _become(["scheduler", *options], certificate)


def join(address: str, name: str, certificate: Path, say: Callable[[str], None]) -> NoReturn:
    """Become a worker, which runs until the farm ends or it is asked to.

    A worker that dies is not started again: that is a service manager's work.

    Args:
        address: The scheduler's, such as ``tls://10.0.0.1:8786``.
        name: What the farm calls this machine; empty: its host's name.
        certificate: The farm's.
        say: Takes a sentence for the user.

    Raises:
        UsageError: Another worker runs on this machine; two would disturb each other.
        FarmError: There is no certificate to use.
    """
    security(certificate)
    kind = kind_of_machine()
    name = name or platform.node()
    folder = cache_folder() / "farm"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        # Held until the worker ends.
        os.set_inheritable(hold_lock(folder / "machine.lock", wait=False), True)
        say(f"{name} joins {address} as a machine of the kind {kind}")
        # A nanny would set variables of the allocator and of thread pools, which change times.
        options = ["--nthreads", "1", "--memory-limit", "0", "--no-nanny", "--name", name]
        options += ["--resources", f"{MACHINE}=1 {kind}=1", "--death-timeout", "60"]
        options += ["--dashboard-address", "127.0.0.1:0", "--local-directory", str(folder)]
        _become(["worker", address, *options], certificate)
    except BlockingIOError:
        raise UsageError(
            "this machine is in a farm already: two workers would measure beside each other"
        ) from None
    except OSError as error:
        raise FarmError(f"{folder} cannot be used: {error.strerror}") from error


def _become(arguments: list[str], certificate: Path) -> NoReturn:
    """Run one of Dask's commands in place of this process; it imports the engine that runs now."""
    for option in ("ca-file", "cert", "key"):
        arguments += [f"--tls-{option}", str(certificate)]
    engine = str(Path(__file__).resolve().parents[2])
    path = [engine, os.environ.get("PYTHONPATH", "")]
    settings = {f"DASK_{name}": value for name, value in SETTINGS.items()}
    environment = {**settings, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "dask", *arguments], environment)
