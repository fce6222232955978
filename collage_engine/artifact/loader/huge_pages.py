"""Puts the memory that a loaded model holds on huge pages (Linux 6.1 or newer; else nothing).

Weights and intermediate values lie on pages of 4 KiB where transparent huge pages are left to
programs ("madvise", the default of most distributions). A model touches more of them per run than
the processor's address caches hold; on a virtual machine every miss walks two page tables.

    pages = HugePages()           # before the model is loaded: notes what is there
    ...                           # load it and run it once: now it holds all that it keeps
    moved = pages.collapse()      # Moved(bytes=18874368, seconds=0.009, reason=None)

Only anonymous private memory that appeared in between is touched, so nothing of the program around
it, and only extents at least half of which are in use, so the resident size grows little (by a few
MB where it was measured). Moving costs up to about 3 ms of CPU time a MB, once. What is freed there
and taken again comes as huge pages, too. COLLAGE_HUGE_PAGES=0 in the environment switches it off.
Standard library only: artifacts carry this file beside their loader.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SWITCH = "COLLAGE_HUGE_PAGES"
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
MAPS = Path("/proc/self/maps")
MADV_HUGEPAGE = 14
MADV_COLLAPSE = 25
ENOMEM = 12
FILLED = 0.5
"""Share of an extent's pages in use, from which it is worth a whole huge page: stacks of threads
and reserved arenas stay as they are; chosen."""

_IN_USE = bytes(value & 1 for value in range(256))
"""``mincore`` says it in the lowest bit; the others have no meaning."""


class Moved(NamedTuple):
    """It says what became of memory that was to move."""

    bytes: int
    """Of the model's memory on huge pages now."""
    seconds: float
    """What moving it took."""
    reason: str | None
    """Why nothing was moved; None: something was."""


class HugePages:
    """Make it before a model is loaded; ``collapse`` after its first run."""

    def __init__(self, unless: str | None = None) -> None:
        """``unless``: why nothing is to be moved, where the caller knows."""
        self.reason = unless or _reason_against()
        """Why ``collapse`` will move nothing, as far as known."""
        self._before: list[tuple[int, int]] = []
        if self.reason is None:
            self._before = list(private_regions())

    def collapse(self) -> Moved:
        """Put what appeared since on huge pages; never fails."""
        if self.reason is not None:
            return Moved(0, 0.0, self.reason)
        start = time.perf_counter()
        try:
            size = int((SETTINGS / "hpage_pmd_size").read_text())
            appeared = list(without(private_regions(), self._before))
            moved, refused = _move(extents(appeared, size), size)
        except (OSError, ValueError, AttributeError) as error:
            return Moved(0, time.perf_counter() - start, f"not supported here: {error}")
        taken = time.perf_counter() - start
        if moved:
            return Moved(moved, taken, None)
        if refused:
            return Moved(0, taken, f"the kernel refused it: {os.strerror(refused)}")
        return Moved(0, taken, f"the model holds no {size >> 20} MiB in one piece")


def _reason_against() -> str | None:
    if os.environ.get(SWITCH, "").strip() == "0":
        return f"{SWITCH}=0"
    if not sys.platform.startswith("linux"):
        return "not Linux"
    try:
        if "[never]" in (SETTINGS / "enabled").read_text():
            return f"switched off on this machine ({SETTINGS / 'enabled'})"
        MAPS.open().close()
    except OSError as error:
        return f"not supported here: {error}"
    return None


def private_regions() -> Iterator[tuple[int, int]]:
    """Begin and end of this process's anonymous private read-write regions, ascending."""
    with MAPS.open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            span, rights, _offset, _device, inode, *name = line.split(None, 5)
            of = name[0].strip() if name else ""
            if rights != "rw-p" or inode != "0":
                continue
            if of in ("", "[heap]") or of.startswith("[anon:"):
                begin, _, end = span.partition("-")
                yield int(begin, 16), int(end, 16)


def without(
    spans: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Return what of ``spans`` lies outside of ``taken``; both ascend without overlaps."""
    cuts = list(taken)
    place = 0
    for begin, end in spans:
        while place < len(cuts) and cuts[place][1] <= begin:
            place += 1
        at = place
        while at < len(cuts) and cuts[at][0] < end:
            if begin < cuts[at][0]:
                yield begin, cuts[at][0]
            begin = cuts[at][1]
            at += 1
        if begin < end:
            yield begin, end


def extents(spans: Iterable[tuple[int, int]], size: int) -> Iterator[int]:
    """Return the addresses of the whole, aligned extents of that many bytes inside the spans."""
    for begin, end in spans:
        yield from range(-(-begin // size) * size, end - size + 1, size)


def _move(addresses: Iterable[int], size: int) -> tuple[int, int]:
    """Return bytes moved, and the error number of the last refusal (0: none)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    pages = size // os.sysconf("SC_PAGE_SIZE")
    seen = (ctypes.c_ubyte * pages)()
    moved = refused = 0
    for address in addresses:
        if libc.mincore(address, size, seen) != 0:
            continue  # gone by now
        if bytes(seen).translate(_IN_USE).count(1) < FILLED * pages:
            continue
        if libc.madvise(address, size, MADV_COLLAPSE) != 0:
            refused = ctypes.get_errno()
            if refused == ENOMEM:
                break  # looking for room at every extent would take long
            continue
        # Given back and taken again, it shall come as a huge page.
        libc.madvise(address, size, MADV_HUGEPAGE)
        moved += size
    return moved, refused
