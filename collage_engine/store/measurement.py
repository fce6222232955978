"""A measurement as it is kept, and a summary of the store that keeps it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from collage_engine.records.cost import Cost
from collage_engine.records.toolchain import ToolchainInstance


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cost and what a reader of the store wants to know about it."""

    key: str
    cost: Cost
    label: str = ""
    instance: ToolchainInstance | None = None
    device: str = ""
    """Description of the processor."""
    versions: dict[str, str] = {}
    model: str = ""
    """Hash of the model it was measured in."""
    one_model: bool = False
    """True: it holds for that model's values only (wrong numbers), whatever the key says."""


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What ``collage store info`` shows."""

    path: str
    exists: bool
    bytes: int = 0
    measurements: int = 0
    invalid: int = 0
    constants: int = 0
    toolchains: dict[str, int] = {}
    devices: dict[str, int] = {}
    oldest: str | None = None
    newest: str | None = None
    writable: bool = True
    """Whether measurements can be added to it here."""
    kernels: int = 0
    """Compiled kernels that are kept on this machine."""
    kernel_bytes: int = 0
    """Bytes of their files."""


def now_text() -> str:
    """Return this moment as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
