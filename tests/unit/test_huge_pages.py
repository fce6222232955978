"""Memory on huge pages: what appeared and is in use, and nothing else."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from collage_engine.machine.loader import run_artifact as loader

MIB = 1 << 20


def huge_bytes() -> int:
    """What of this process lies on huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages")) << 10


def can_collapse() -> bool:
    """Whether this system has huge pages and moves memory to them when it is asked to."""
    if not sys.platform.startswith("linux"):
        return False
    held = memory(8 * MIB, 1.0)
    try:
        held.madvise(loader.MADV_COLLAPSE)
        return huge_bytes() > 0
    except OSError:
        return False
    finally:
        held.close()


def memory(size: int, used: float) -> mmap.mmap:
    """Private memory of which a share is in use, in a mapping of its own."""
    held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for place in range(0, int(size * used), mmap.PAGESIZE):
        held[place] = 1
    return held


needs_huge_pages = pytest.mark.skipif(not can_collapse(), reason="no huge pages on request here")


@needs_huge_pages
def test_memory_that_appeared_moves_and_keeps_its_content() -> None:
    before = loader.private_regions()
    was = huge_bytes()
    held = memory(16 * MIB, 0.8)
    held[5 * MIB] = 77
    loader.use_huge_pages(before)
    assert huge_bytes() - was >= 10 * MIB
    assert held[5 * MIB] == 77 and held[0] == 1


@needs_huge_pages
def test_what_was_there_before_and_what_is_hardly_used_stay() -> None:
    held = memory(16 * MIB, 1.0)
    before, was = loader.private_regions(), huge_bytes()
    loader.use_huge_pages(before)
    assert huge_bytes() == was
    reserved = memory(512 * MIB, 0.02)  # too large for a neighbour to make it half used
    loader.use_huge_pages(before)
    assert huge_bytes() - was < 2 * MIB
    held.close()
    reserved.close()


def test_a_system_without_such_settings_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loader, "HUGE_PAGE_SETTINGS", tmp_path)
    assert loader.private_regions() == []
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    assert loader.private_regions() == [], "the size of a huge page is not told"
    (tmp_path / "hpage_pmd_size").write_text("2097152\n")
    assert loader.private_regions()
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    assert loader.private_regions() == []
