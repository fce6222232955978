"""Writes numbers, times, sizes and names in the one way in which every face shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from collage_engine.records.graph import Node, TensorType

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"

LEAST_US = 0.01
"""The least time that is written as a figure, in microseconds; chosen: less than a hundredth of the
shortest call of any toolchain, and no measurement tells it from nothing."""


def total(amounts: Iterable[float | None]) -> float | None:
    """Return the sum of amounts; None where one is not known, or there are none."""
    known = list(amounts)
    return sum(filter(None, known)) if known and None not in known else None


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


def moment_text(moment: str) -> str:
    """Return a moment in ISO 8601 to the minute: ``2026-11-22 10:00 UTC``; else what was given."""
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{at:%Y-%m-%d %H:%M} {at.tzname() or ''}".rstrip()


def signed_time(us: float | None) -> str:
    """Return a difference of times given in µs, with its sign."""
    if us is None or math.isnan(us):
        return DASH
    return ("+" if us > -LEAST_US else "") + time_text(us)


def gain_text(now: float | None, before: float | None) -> str:
    """Return ``−12.0 %``: how much longer one time is than another; negative when faster.

    From ten times as long it is the factor: ``×12``. Unknown is a dash.
    """
    if now is None or before is None or before <= 0:
        return DASH
    if now / before >= 10:
        return f"×{significant(now / before)}"
    share = (now - before) / before * 100
    if abs(share) < 0.05:
        return "0.0 %"
    return f"{MINUS if share < 0 else '+'}{abs(share):.1f} %"


def spread_text(spread: tuple[float, float] | None, middle: float | None) -> str:
    """Return ``19.7–23.4``: two times in µs, in the unit in which ``middle`` is written."""
    if spread is None or middle is None:
        return ""
    scale = 1.0 if middle < 999.5 else 1e3 if middle < 9_999_500 else 1e6
    return DASH.join(significant(us / scale) for us in spread)


def number_text(count: int) -> str:
    """Return a count with its thousands apart: ``1,980``."""
    return f"{count:,}"


def as_sentence(text: str) -> str:
    """Return a text with a capital at its beginning and a full stop at its end."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"


def duration_text(seconds: float | None) -> str:
    """Return a duration for people: ``34 s``, ``2 min 10 s``, ``1 h 5 min``."""
    if seconds is None or math.isnan(seconds):
        return DASH
    if seconds < 1:
        return "< 1 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def bytes_text(count: float) -> str:
    """Return a number of bytes with a binary unit: ``1.50 MiB``."""
    units = ("B", "KiB", "MiB", "GiB")
    power = max(0, min(int(count).bit_length() - 1, 30)) // 10
    return f"{significant(count / 1024**power)} {units[power]}"


def shape_text(kind: TensorType) -> str:
    """Return the shape of a value: ``1×64×56×56``."""
    return "×".join(map(str, kind.shape)) if kind.shape else "scalar"


def node_shapes(node: Node) -> str:
    """Return the shapes of all values of a node."""
    return ", ".join(shape_text(kind) for kind in node.types)


def short_operator(op: str) -> str:
    """Return the last part of an operator's name: ``conv2d`` of ``nn.conv2d``."""
    return op.rsplit(":", 1)[-1].rsplit(".", 1)[-1] or "operator"


def elide(text: str, limit: int) -> str:
    """Return a text cut in the middle to ``limit`` characters."""
    if len(text) <= limit:
        return text
    keep = limit - 1
    return text[: keep - keep // 2] + "…" + text[len(text) - keep // 2 :]
