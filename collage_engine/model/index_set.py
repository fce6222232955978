"""Index sets: sets of node indices held in one Python int used as a bit set.

Union is ``|``, intersection ``&``, difference ``a & ~b``, subset ``a & ~b == 0``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

IndexSet = int


def index_set(indices: Iterable[int]) -> IndexSet:
    """The set of these indices."""
    bits = 0
    for index in indices:
        bits |= 1 << index
    return bits


def members(bits: IndexSet) -> Iterator[int]:
    """Indices in ascending order."""
    index = -1
    while bits:
        # Shifting leaves a number as short as the window of the set, however far up it lies.
        step = (bits & -bits).bit_length()
        index += step
        yield index
        bits >>= step


def first(bits: IndexSet) -> int:
    """The smallest index; -1 when empty."""
    return (bits & -bits).bit_length() - 1


def last(bits: IndexSet) -> int:
    """The largest index; -1 when empty."""
    return bits.bit_length() - 1


def size(bits: IndexSet) -> int:
    return bits.bit_count()


def to_text(bits: IndexSet) -> str:
    """``{3..5,9}``, runs of three or more written with dots, as upstream prints them."""
    parts: list[str] = []
    run: list[int] = []

    def flush() -> None:
        if len(run) >= 3:
            parts.append(f"{run[0]}..{run[-1]}")
        else:
            parts.extend(map(str, run))
        run.clear()

    for index in members(bits):
        if run and index != run[-1] + 1:
            flush()
        run.append(index)
    flush()
    return "{" + ",".join(parts) + "}"
