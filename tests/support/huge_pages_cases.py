"""Finds for the tests of huge pages whether the kernel gives them, and where they lie."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
MADV_COLLAPSE = 25
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")


def why_not() -> str | None:
    """Says why this machine has no huge pages to give, found without the code under test."""
    try:
        if "[never]" in (SETTINGS / "enabled").read_text():
            return "transparent huge pages are switched off"
        size = int((SETTINGS / "hpage_pmd_size").read_text())
    except OSError as error:
        return f"no transparent huge pages: {error}"
    if size != 2 * MIB:
        return f"huge pages of {size} bytes"
    memory = mmap.mmap(-1, 2 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"x" * (2 * size))
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(-(-begin // size) * size)
    if libc.madvise(address, ctypes.c_size_t(size), MADV_COLLAPSE) != 0:
        return f"MADV_COLLAPSE: error {ctypes.get_errno()}"
    return None


def mappings(smaps: str) -> Iterator[tuple[int, int, int, list[str]]]:
    """Begin, end, bytes on huge pages and flags of every mapping in ``/proc/PID/smaps``."""
    begin = end = huge = 0
    for line in smaps.splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = int(span[1], 16), int(span[2], 16)
        elif line.startswith("AnonHugePages:"):
            huge = int(line.split()[1]) * 1024
        elif line.startswith("VmFlags:"):
            yield begin, end, huge, line.split()[1:]


def huge_bytes(smaps: str) -> int:
    """Returns the bytes on huge pages that ``/proc/PID/smaps`` or ``smaps_rollup`` lists."""
    return sum(int(kib) * 1024 for kib in re.findall(r"AnonHugePages:\s+(\d+)", smaps))
