"""How people write a duration, at every face: ``90 s``, ``10m``, ``1 h 30 min``."""

from __future__ import annotations

import re

from collage_engine.support.errors import InvalidValue

LONGEST_S = 1e9
"""Seconds above which neither a budget nor a time is believed, 30 years; chosen."""
_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
"""Seconds of each unit."""
_PART = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*")


def parse_duration(text: str, *, or_none: bool = False) -> float:
    """Read a duration whose parts each have a unit: ``25s``, ``2 min 30 s``, ``1.5h``.

    Args:
        text: What was written.
        or_none: Whether ``0s`` is a duration too: that of what is not done.

    Returns:
        Seconds.

    Raises:
        InvalidValue: A number has no unit, which could mean seconds or minutes; or the text is no
            duration that a run can have.
    """
    seconds, at, lowered = 0.0, 0, text.strip().lower()
    while at < len(lowered):
        found = _PART.match(lowered, at)
        if found is None or found[2] not in ("", *_SECONDS):
            raise InvalidValue(f"{text!r} is no duration: write 90s, 10m or 1h")
        if not found[2]:
            number = found[1] if float(found[1]) else "2"
            raise InvalidValue(f"{text!r} has no unit: write {number}s or {number}m")
        seconds += float(found[1]) * _SECONDS[found[2]]
        at = found.end()
    if not (0 < seconds < LONGEST_S or (or_none and text.strip() and seconds == 0)):
        raise InvalidValue(f"{text!r} is no duration above 0: write 90s, 10m or 1h")
    return seconds
