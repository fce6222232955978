"""Cuts files into pieces by their content, so that what several hold is stored once.

A module's weights lie inside ``model.so`` as its toolchains packed them. Where two modules hold the
same weights in the same form, long runs of their bytes are equal, at different places. The cuts are
where a hash of the last eight bytes has a certain value, hence at the same places of equal runs
(content-defined chunking; Muthitacharoen, Chen and Mazieres: A low-bandwidth network file system,
SOSP 2001). Neighbouring chunks that occur in the same files in the same order become one piece.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

WINDOW = 8
"""Bytes that decide whether there is a cut: as many as the hash takes at once, a 64-bit word."""
CUT_BITS = 14
"""There is a cut after 2^CUT_BITS bytes on average, 16 KiB; chosen: the weights of a small layer
are that large, and a hundred megabytes have some thousand chunks, which take no time to compare."""
LEAST = 1 << 10
"""Bytes of a chunk, at least; chosen, a sixteenth of the average: without a least size, runs of
equal bytes could be cut at every byte."""
BLOCK = 1 << 22
"""Bytes that are hashed at once; chosen: for 4 MiB the words and their hashes, eight bytes each for
every byte, take a hundred megabytes of memory."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio, for multiplicative hashing (Knuth, volume 3, section 6.4)."""


class Pieces(msgspec.Struct, frozen=True, kw_only=True):
    """Files as lists of pieces."""

    files: tuple[tuple[str, ...], ...]
    """For each file the names of its pieces, in order: the SHA-256 of their content."""
    sizes: dict[str, int]
    """Piece → bytes."""

    @property
    def stored(self) -> int:
        """Return bytes of all pieces."""
        return sum(self.sizes.values())


def cuts(data: np.ndarray) -> list[int]:
    """Return where the chunks of some bytes end, the last of them at the end of the bytes."""
    found: list[int] = []
    last = 0
    for begin in range(0, max(1, len(data) - WINDOW + 1), BLOCK):
        block = data[begin : begin + BLOCK + WINDOW - 1]
        if len(block) < WINDOW:
            break
        for place in _places(block):
            end = begin + int(place) + WINDOW
            if end - last >= LEAST:
                found.append(end)
                last = end
    if not found or found[-1] != len(data):
        found.append(len(data))
    return found


def _places(block: np.ndarray) -> np.ndarray:
    """Return where the windows with the certain hash begin, in order."""
    found = []
    for first in range(WINDOW):
        count = (len(block) - first) // WINDOW
        words = block[first : first + count * WINDOW].view(np.uint64)
        hashes = (words * _FACTOR) >> np.uint64(64 - CUT_BITS)
        found.append(np.flatnonzero(hashes == 1) * WINDOW + first)
    return np.sort(np.concatenate(found))


def write_pieces(files: Sequence[Path], folder: Path) -> Pieces:
    """Write files as pieces into a folder.

    Args:
        files: What is cut; none of them is changed.
        folder: Where the pieces go, each in a file that is named by its SHA-256; it is made.

    Returns:
        Which pieces make up which file.
    """
    contents = [np.memmap(path, np.uint8, "r") for path in files]
    chunks: list[list[tuple[str, int, int]]] = []
    users: dict[str, dict[int, int]] = {}
    for number, data in enumerate(contents):
        begin = 0
        mine = []
        for end in cuts(data):
            digest = hashlib.sha256(data[begin:end].tobytes()).hexdigest()
            mine.append((digest, begin, end))
            times = users.setdefault(digest, {})
            times[number] = times.get(number, 0) + 1
            begin = end
        chunks.append(mine)
    folder.mkdir(parents=True, exist_ok=True)
    sizes: dict[str, int] = {}
    lists: list[tuple[str, ...]] = []
    followers = _followers(chunks)
    for data, mine in zip(contents, chunks, strict=True):
        names = []
        begin = 0
        for place, (digest, _, end) in enumerate(mine):
            after = mine[place + 1][0] if place + 1 < len(mine) else None
            if after is not None and followers[digest] == {after} and users[digest] == users[after]:
                continue
            piece = data[begin:end].tobytes()
            name = hashlib.sha256(piece).hexdigest()
            if name not in sizes:
                sizes[name] = len(piece)
                (folder / name).write_bytes(piece)
            names.append(name)
            begin = end
        lists.append(tuple(names))
    return Pieces(files=tuple(lists), sizes=sizes)


def _followers(chunks: Sequence[Sequence[tuple[str, int, int]]]) -> dict[str, set[str | None]]:
    """Returns the chunks that follow each chunk somewhere; None stands for the end of a file."""
    found: dict[str, set[str | None]] = {}
    for mine in chunks:
        for place, (digest, _, _) in enumerate(mine):
            after = mine[place + 1][0] if place + 1 < len(mine) else None
            found.setdefault(digest, set()).add(after)
    return found
