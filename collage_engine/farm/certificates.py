"""The certificate of a farm: who holds it is a member, and everybody else is kept out.

TRUST: whoever holds a farm's certificate can run any code as the user of its scheduler, of every
worker and of every coordinator. TLS only keeps others out. A farm belongs to people who would give
each other a login to these machines.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.machine.folders import cache_folder
from collage_engine.records.errors import FarmError, UsageError

if TYPE_CHECKING:
    from distributed.security import Security

FILE_NAME = "certificate.pem"
LASTS_DAYS = 3650
"""Days for which a certificate is valid; chosen: a farm's members exchange it by hand."""
INSTALL = "pip install 'collage-explorer[farm]'"
TRUST = (
    "whoever holds this file can run any code on every machine of the farm; give it only to "
    "people to whom you would give a login"
)


def farm_folder() -> Path:
    """Return the folder of this user's farm files, which only the user may read."""
    folder = cache_folder() / "farm"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise FarmError(f"{folder} cannot be made: {error.strerror}") from error
    return folder


def certificate_path() -> Path:
    """Return where this user's certificate lies: $COLLAGE_FARM_CERTIFICATE, or the own one."""
    chosen = os.environ.get("COLLAGE_FARM_CERTIFICATE")
    return Path(chosen) if chosen else farm_folder() / FILE_NAME


def own_certificate() -> tuple[Path, bool]:
    """Return this user's certificate, made at the first call; and whether this call made it.

    Raises:
        FarmError: It cannot be made.
    """
    path = certificate_path()
    if path.exists():
        return path, False
    keep_certificate(make_certificate(), path)
    return path, True


def keep_certificate(content: bytes, path: Path) -> None:
    """Write a certificate with its key so that nobody but the user can read it.

    Raises:
        FarmError: It is no certificate with its key, or cannot be written.
    """
    if b"PRIVATE KEY" not in content or b"BEGIN CERTIFICATE" not in content:
        raise FarmError("this is no certificate of a farm: it must hold a certificate and its key")
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
        _check(new, "what was given")
        new.replace(path)
    except OSError as error:
        raise FarmError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            new.unlink()


def take_certificate(content: bytes) -> Path:
    """Keep the certificate of a farm that this machine joins, as this user's; return its path.

    Raises:
        UsageError: This user has another one, which may be that of a farm of the user's own.
        FarmError: It is no certificate with its key, or cannot be written.
    """
    path = certificate_path()
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return path
        raise UsageError(
            f"{path} is the certificate of another farm: remove it, or have "
            "COLLAGE_FARM_CERTIFICATE name the file for this one"
        )
    keep_certificate(content, path)
    return path


def _check(path: Path, name: str) -> None:
    """Raise ``FarmError`` unless a file holds a certificate and the key that belongs to it."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path)
    except (ssl.SSLError, ValueError) as error:
        raise FarmError(
            f"{name} is damaged: it holds no certificate with the key that belongs to it; copy it "
            "again from the machine that serves the farm"
        ) from error


def make_certificate() -> bytes:
    """Return a new self-signed certificate with its key, as PEM; it serves all roles of a farm."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise FarmError(f"a farm needs the package cryptography: {INSTALL}") from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "collage-farm")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of other machines may be behind
        .not_valid_after(now + timedelta(days=LASTS_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + made.public_bytes(serialization.Encoding.PEM)


def security(path: Path) -> Security:
    """Return what Dask takes to use a certificate in every role.

    Raises:
        FarmError: The file is missing or damaged, or others than the user may read it.
    """
    from distributed.security import Security

    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise FarmError(
            f"{path} cannot be read ({error.strerror}): a farm over TLS needs the certificate that "
            "`collage farm serve` made; bring it here, or name it with COLLAGE_FARM_CERTIFICATE"
        ) from error
    if not stat.S_ISREG(mode):
        raise FarmError(f"{path} is no certificate: it is not a regular file")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FarmError(f"others can read the key in {path}: run chmod 600 {path}")
    _check(path, str(path))
    file = str(path)
    make: Any = Security  # it has no types
    roles = ("client", "scheduler", "worker")
    # The file is named as the key, too: dask-jobqueue would write "--tls-key None" into its jobs.
    files = {f"tls_{role}_{what}": file for role in roles for what in ("cert", "key")}
    made: Security = make(require_encryption=True, tls_ca_file=file, **files)
    return made
