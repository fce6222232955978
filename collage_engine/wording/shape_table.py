"""Lists the shapes that were placed for one artifact, as every face of the program shows them."""

from __future__ import annotations

from collage_engine.records.shapes import ShapeRow, Sharing
from collage_engine.wording.formatting import DASH, bytes_text, gain_text, significant, time_text

COLUMNS = (
    "shape",
    "latency",
    "items per second",
    "toolchains",
    "best single toolchain",
    "against it",
)
"""Titles of the columns of the table of shapes."""
NUMBERS = ("latency", "items per second", "against it")
"""Titles of the columns that hold numbers."""


def shape_cells(row: ShapeRow) -> tuple[str, ...]:
    """Return the texts of a row, in the order of ``COLUMNS``."""
    single = f"{row.best_single}, {time_text(row.best_single_us)}" if row.best_single else DASH
    rate = DASH if row.items_per_s is None else significant(row.items_per_s)
    gain = gain_text(row.latency_us, row.best_single_us)
    toolchains = ", ".join(row.toolchains) or DASH
    return (row.choice.text, time_text(row.latency_us), rate, toolchains, single, gain)


def sharing_sentences(shapes: int, sharing: Sharing | None) -> list[str]:
    """Returns what the entries of an artifact share, and along which dimensions it pads.

    Args:
        shapes: How many shapes it has.
        sharing: What is known of it; None: nothing.
    """
    if sharing is None:
        return []
    said = []
    if sharing.apart_bytes:
        said.append(
            f"the files of {shapes} shapes take {bytes_text(sharing.bytes)} together; apart they "
            f"would take {bytes_text(sharing.apart_bytes)}"
        )
    if sharing.padded:
        said.append(
            f"inputs that are smaller along {', '.join(sharing.padded)} are padded to the next "
            "larger shape"
        )
    for dim, why in sharing.not_padded.items():
        said.append(f"inputs are not padded along {dim}: {why}")
    return said
