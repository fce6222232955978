"""Keeps the certificate of a farm: who holds it is a member, and TLS keeps everybody else out.

A person who holds it can run any code as the user of the scheduler, of every worker and of every
client, because Dask's messages carry pickled objects. A farm therefore belongs to people who would
give each other a login to these machines.
"""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.machine.folders import cache_folder
from collage_engine.support.errors import FarmError

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
    if path.exists():
        return False
    made: Any = _dask_security().temporary()  # type: ignore[no-untyped-call]
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
    found: type[Security] = Security
    return found
