"""How numbers are written: three significant digits, µs below 1 ms, signed percentages."""

from __future__ import annotations

from collage_engine.drawing.accuracy import accuracy_sentences
from collage_engine.drawing.formatting import (
    MINUS,
    bytes_text,
    counted,
    memory_text,
    significant,
    time_text,
)

__all__ = [
    "accuracy_sentences",
    "against_text",
    "bytes_text",
    "counted",
    "instance_text",
    "memory_text",
    "spread_text",
    "time_text",
]


def against_text(us: float | None, reference: float | None) -> str:
    """``+3.1 %``: how much longer than the reference; beyond tenfold, how many times."""
    if us is None or not reference:
        return ""
    share = us / reference
    if share >= 10:
        return f"×{significant(share, 2)}"
    percent = (share - 1) * 100
    if abs(percent) < 0.05:
        return "0.0 %"
    return f"{MINUS if percent < 0 else '+'}{abs(percent):.1f} %"


def spread_text(spread: tuple[float, float] | None, middle: float | None) -> str:
    """``19.7–23.4``: two times in the unit in which ``middle`` is written."""
    if spread is None or middle is None:
        return ""
    scale = 1.0 if middle < 999.5 else 1e3 if middle < 9_999_500 else 1e6
    return "–".join(significant(us / scale) for us in spread)


def instance_text(toolchain: str, config: dict[str, str]) -> str:
    """A toolchain with its configuration: ``onnxruntime[level=basic]``."""
    inside = ",".join(f"{k}={v}" for k, v in sorted(config.items()))
    return f"{toolchain}[{inside}]" if inside else toolchain
