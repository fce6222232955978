"""How numbers are written: three significant digits, µs below 1 ms, signed percentages."""

from __future__ import annotations


def time_text(us: float | None) -> str:
    """``41.3 µs``, ``73.2 ms``; a dash for an unknown time."""
    if us is None:
        return "–"
    if us < 1000:
        return f"{us:.3g} µs" if us >= 1 else f"{us:.2f} µs"
    ms = us / 1000
    return f"{ms:.0f} ms" if ms >= 1000 else f"{ms:.3g} ms"


def gain_text(us: float | None, reference: float | None) -> str:
    """``+3.1 %``: how much longer than the reference."""
    if us is None or not reference:
        return ""
    return f"{(us / reference - 1) * 100:+.1f} %"
