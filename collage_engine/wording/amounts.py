"""Writes numbers and times in the one way in which every sentence and every table shows them."""

from __future__ import annotations

import math

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"

LEAST_US = 0.01
"""The least time that is written as a figure, in microseconds; chosen: less than a hundredth of the
shortest call of any toolchain, and no measurement tells it from nothing."""


def significant(value: float, digits: int = 3) -> str:
    """Return a number with that many significant digits, never in exponent form: ``4,480``."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "∞" if value > 0 else DASH
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{abs(value):,.{places}f}"
    if len(text.replace(".", "").lstrip("0")) > digits and "." in text:
        text = f"{abs(value):,.{max(0, places - 1)}f}"
    return (MINUS if value < 0 else "") + text


def time_text(us: float | None) -> str:
    """Return a time given in µs as text: µs below 1 ms, ms below 10 s, else s; None: a dash."""
    if us is None or math.isnan(us):
        return DASH
    if math.isinf(us):
        return "∞"
    if abs(us) < LEAST_US:
        return "0 µs"
    if abs(us) < 10 * LEAST_US:
        return f"{significant(us, 1)} µs"
    if abs(us) < 999.5:
        return f"{significant(us)} µs"
    if abs(us) < 9_999_500:
        return f"{significant(us / 1e3)} ms"
    return f"{significant(us / 1e6)} s"
