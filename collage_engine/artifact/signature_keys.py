"""Ed25519 keys and signatures by the package ``cryptography``, which is an optional extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from collage_engine.records.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )


def private_key(data: bytes, name: str) -> Ed25519PrivateKey:
    """Return the private key of a PEM file; ``UsageError`` names the file where it holds none."""
    serialization, ed25519 = _libraries()
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except TypeError:
        raise UsageError(f"the key {name} has a passphrase, which is not supported") from None
    except Exception:  # the library has a dozen classes for what is no key
        raise UsageError(f"{name} holds no private key in PEM format") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError(f"the key {name} is no Ed25519 key")
    return cast("Ed25519PrivateKey", key)


def public_key(data: bytes, name: str) -> Ed25519PublicKey:
    """Return the public key of a PEM file; ``UsageError`` names the file where it holds none."""
    serialization, ed25519 = _libraries()
    try:
        key = serialization.load_pem_public_key(data)
    except Exception:  # the library has a dozen classes for what is no key
        raise UsageError(f"{name} holds no public key in PEM format") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UsageError(f"the key {name} is no Ed25519 key")
    return cast("Ed25519PublicKey", key)


def holds(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    """Return whether the owner of the key signed these bytes."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _libraries() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UsageError(
            "signatures need the package cryptography: pip install 'collage-explorer[sign]'"
        ) from None
    return serialization, ed25519
