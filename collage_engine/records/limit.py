"""A verdict says what became of a limit on the runtimes of a placement."""

from __future__ import annotations

import msgspec

from collage_engine.records.pin import VerdictState


class LimitVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a deployment limit, and its price."""

    constraint: str
    """``allow``, ``max_runtimes``, ``max_bytes``, ``licences`` or ``max_memory``."""
    text: str
    """In words: ``at most 1 runtime``."""
    state: VerdictState
    price_us: float | None = None
    """Least cost with it less least cost without it, pins and other limits kept; of a limit on
    memory the difference of measured times."""
    reason: str | None = None
