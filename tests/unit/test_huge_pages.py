"""Huge pages for what appeared in between, in Python and in C++, and for nothing else."""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.artifact.loader import huge_pages
from collage_engine.artifact.loader.huge_pages import HugePages, extents, without
from tests.support.huge_pages_cases import MIB, mappings, why_not

FOLDER = Path(huge_pages.__file__).parent

PYTHON = """
import ctypes, json, mmap, os, sys
sys.path.insert(0, sys.argv[1])
from huge_pages import HugePages
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
kept = []
def place(size, used):
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, size // 4096, used):
        memory[page * 4096] = 1
    kept.append(memory)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return begin, begin + size
host = place(16 << 20, 1)
pages = HugePages()
model = place(16 << 20, 1)
sparse = place(16 << 20, 3)
small = [libc.malloc(100000) for _ in range(200)]
for address in small:
    ctypes.memset(address, 1, 100000)
moved = pages.collapse()
heap = min(small), max(small) + 100000
print(json.dumps({"host": host, "model": model, "sparse": sparse, "heap": heap,
                  "bytes": moved.bytes, "reason": moved.reason, "pid": os.getpid()}))
print(open("/proc/self/smaps").read())
"""

CPP = """
#include "huge_pages.h"
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
static char* Place(const char* name, size_t size, size_t used) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char* begin = static_cast<char*>(memory);
  for (size_t page = 0; page < size / 4096; page += used) begin[page * 4096] = 1;
  std::printf("\\"%s\\": [%zu, %zu], ", name, (size_t)begin, (size_t)begin + size);
  return begin;
}
int main() {
  std::printf("{");
  Place("host", 16 << 20, 1);
  std::fflush(stdout);
  collage::HugePages pages;
  Place("model", 16 << 20, 1);
  Place("sparse", 16 << 20, 3);
  size_t low = SIZE_MAX, high = 0;
  for (int i = 0; i < 200; ++i) {
    char* block = static_cast<char*>(std::malloc(100000));
    std::memset(block, 1, 100000);
    low = std::min(low, (size_t)block);
    high = std::max(high, (size_t)block + 100000);
  }
  const collage::Moved moved = pages.Collapse();
  std::printf("\\"heap\\": [%zu, %zu], \\"bytes\\": %zu, \\"reason\\": %s%s%s}\\n", low, high,
              moved.bytes, moved.reason.empty() ? "null" : "\\"", moved.reason.c_str(),
              moved.reason.empty() ? "" : "\\"");
  std::fflush(stdout);
  std::cout << std::ifstream("/proc/self/smaps").rdbuf();
}
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Language → the command that maps a host's memory, a model's, and moves."""
    found = {"python": [sys.executable, "-c", PYTHON, str(FOLDER)]}
    compiler = os.environ.get("CXX", "g++")
    if sys.platform.startswith("linux") and shutil.which(compiler) is not None:
        folder = tmp_path_factory.mktemp("huge")
        (folder / "host.cc").write_text("#include <algorithm>\n#include <cstdlib>\n" + CPP)
        subprocess.run(
            [
                compiler,
                "-std=c++17",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                f"-I{FOLDER}",
                str(folder / "host.cc"),
                "-o",
                str(folder / "host"),
            ],
            check=True,
            timeout=240,
        )
        found["c++"] = [str(folder / "host")]
    return found


@pytest.fixture(params=["python", "c++"])
def ran(request, commands):
    """Runs it, in an environment with or without the switch: (what it said, its mappings)."""
    if request.param not in commands:
        pytest.skip("no C++ compiler")

    def run(switch: str | None):
        environment = {k: v for k, v in os.environ.items() if k != "COLLAGE_HUGE_PAGES"}
        if switch is not None:
            environment["COLLAGE_HUGE_PAGES"] = switch
        done = subprocess.run(
            commands[request.param], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        said, _, smaps = done.stdout.partition("\n")
        return json.loads(said), list(mappings(smaps))

    return run


def inside(spans, region) -> tuple[int, bool]:
    """Bytes on huge pages of the mappings that overlap a region, and whether all asked for none.

    A mapping may reach beyond the region; one on huge pages never does, they are asked for by
    whole extents.
    """
    over = [s for s in spans if s[0] < region[1] and s[1] > region[0]]
    return sum(huge for _, _, huge, _ in over), all("hg" not in flags for *_, flags in over)


def test_what_appeared_moves_and_the_host_does_not(ran):
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    said, spans = ran(None)
    assert said["reason"] is None
    assert inside(spans, said["model"])[0] >= 8 * MIB  # of 16: the kernel may find an extent busy
    assert inside(spans, said["heap"])[0] >= 8 * MIB, "growth of the heap is left out"
    total = sum(huge for _, _, huge, _ in spans)
    assert total >= said["bytes"] >= 16 * MIB
    if "always" not in always():
        assert inside(spans, said["host"]) == (0, True)
        assert inside(spans, said["sparse"]) == (0, True), "a third in use became three thirds"


def always() -> str:
    """What the machine does by itself."""
    chosen = (huge_pages.SETTINGS / "enabled").read_text()
    return "always" if "[always]" in chosen else ""


def test_the_switch(ran):
    if not sys.platform.startswith("linux"):
        pytest.skip("not Linux")
    said, spans = ran("0")
    assert said["bytes"] == 0 and "COLLAGE_HUGE_PAGES=0" in said["reason"]
    assert all("hg" not in flags for *_, flags in spans)


def test_where_there_are_none_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.delenv("COLLAGE_HUGE_PAGES", raising=False)
    assert HugePages("a reason").collapse() == (0, 0.0, "a reason")
    monkeypatch.setattr(huge_pages, "SETTINGS", tmp_path / "absent")
    moved = HugePages().collapse()
    assert moved.bytes == 0 and moved.reason
    monkeypatch.setattr(huge_pages, "SETTINGS", tmp_path)
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    moved = HugePages().collapse()
    assert moved.bytes == 0 and moved.reason
    monkeypatch.setattr(huge_pages.sys, "platform", "darwin")
    assert HugePages().collapse() == (0, 0.0, "not Linux")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="not Linux")
def test_a_kernel_that_knows_no_collapse_is_left_alone(tmp_path, monkeypatch):
    """An advice it does not know: EINVAL, as before Linux 6.1."""
    monkeypatch.delenv("COLLAGE_HUGE_PAGES", raising=False)
    monkeypatch.setattr(huge_pages, "SETTINGS", tmp_path)
    monkeypatch.setattr(huge_pages, "MADV_COLLAPSE", 9999)
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    (tmp_path / "hpage_pmd_size").write_text(f"{2 * MIB}\n")
    pages = HugePages()
    # A mapping of its own: a large object may lie where an earlier one was.
    held = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.write(os.urandom(64) * MIB)
    moved = pages.collapse()
    assert moved.bytes == 0 and "Invalid argument" in str(moved.reason)
    assert held[:64] == held[-64:]
    (tmp_path / "hpage_pmd_size").write_text("?\n")
    assert HugePages().collapse().bytes == 0


def test_what_is_outside_of_what_was_there():
    draw = random.Random(5)
    for _ in range(200):
        spans, taken = [
            [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]
            for edges in (sorted(draw.sample(range(60), 2 * draw.randint(0, 6))) for _ in "ab")
        ]
        covered = {x for a, b in taken for x in range(a, b)}
        wanted = {x for a, b in spans for x in range(a, b)} - covered
        left = list(without(spans, taken))
        assert {x for a, b in left for x in range(a, b)} == wanted
        assert all(a < b for a, b in left) and left == sorted(left)
        size = draw.randint(1, 7)
        assert list(extents(left, size)) == [
            x for a, b in left for x in range(0, 60, size) if a <= x and x + size <= b
        ]
