"""Detached signatures of artifacts: Ed25519 over the manifest, which holds the hashes of all files.

A signature says who exported an artifact, which its hashes cannot: whoever changes a file can
change its hash too. Keys are those of OpenSSL, and OpenSSL can check a signature without this
program::

    openssl genpkey -algorithm ed25519 -out key.pem
    openssl pkey -in key.pem -pubout -out key.pub.pem
    openssl pkeyutl -verify -pubin -inkey key.pub.pem -rawin -in DIR/manifest.json \
        -sigfile DIR/manifest.json.sig
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collage_engine.artifact.loader.run_artifact import LARGEST_MANIFEST, MANIFEST
from collage_engine.artifact.manifest import read_manifest, verify_files
from collage_engine.records.errors import ArtifactError, UsageError
from collage_engine.records.files import write_atomically
from collage_engine.records.regular_file import read_regular

SIGNATURE = f"{MANIFEST}.sig"
"""The file beside the manifest that holds the 64 bytes of its signature."""

MOST_KEY_BYTES = 1 << 16
"""Bytes of a key or a signature that are read; chosen: a key in PEM format has a few hundred."""


class Signer:
    """A private key that signs artifacts.

    Args:
        key: A file in PEM format with an Ed25519 private key, without a passphrase.

    Raises:
        UsageError: There is no such key, or the package cryptography is missing.
    """

    def __init__(self, key: Path) -> None:
        from collage_engine.artifact import signature_keys

        self._key = signature_keys.private_key(_bytes_of(key), str(key))

    def sign(self, folder: Path) -> None:
        """Write the signature of an artifact's manifest beside it.

        Raises:
            ArtifactError: It cannot be written.
        """
        try:
            write_atomically(folder / SIGNATURE, self._key.sign(_manifest_of(folder)))
        except OSError as error:
            raise ArtifactError(
                f"the signature cannot be written to {folder}: {error.strerror}"
            ) from error


def verify_signature(folder: Path, key: Path) -> dict[str, Any]:
    """Check that an artifact is what the owner of a key exported; nothing of it is executed.

    Args:
        folder: The artifact.
        key: A file in PEM format with an Ed25519 public key.

    Returns:
        The manifest, whose signature and hashes hold.

    Raises:
        UsageError: There is no such key, or the package cryptography is missing.
        ArtifactError: The artifact is not signed, by another key, or was changed.
    """
    from collage_engine.artifact import signature_keys

    public = signature_keys.public_key(_bytes_of(key), str(key))
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    try:
        signature = read_regular(folder / SIGNATURE, MOST_KEY_BYTES)
        signed = _manifest_of(folder)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{folder} is not signed: it has no {Path(error.filename).name}"
        ) from None
    except OSError as error:
        raise ArtifactError(f"the signature of {folder} cannot be read: {error.strerror}") from None
    if not signature_keys.holds(public, signature, signed):
        raise ArtifactError(
            f"{folder} was not signed by the owner of {key}, or its manifest was changed since"
        )
    manifest = read_manifest(folder)
    verify_files(folder, manifest)
    return manifest


def _manifest_of(folder: Path) -> bytes:
    return read_regular(folder / MANIFEST, LARGEST_MANIFEST)


def _bytes_of(key: Path) -> bytes:
    try:
        return read_regular(key, MOST_KEY_BYTES)
    except FileNotFoundError:
        raise UsageError(f"there is no key {key}") from None
    except OSError as error:
        raise UsageError(f"the key {key} cannot be read: {error.strerror}") from None
