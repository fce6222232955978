"""Finds what no program can exceed here: FLOP/s by element type, bytes/s by memory level.

The search leaves candidates unmeasured whose lower bound already loses, so a peak must never be
too low. A measured rate alone is no upper bound: the measurement may have met a slow moment. So:

* FLOP/s is the larger of the measured rate and what the instruction set can do in one cycle,
  times the clock measured by a dependent chain (no core retires more vector multiply-adds a
  cycle than it has pipes for), with a margin for a clock that rises later.
  What is known of a processor family counts: Zen 4 runs a 512-bit operation as two halves.
* Reading from L1 and L2 is bounded in the same way by the width of their paths; reading from
  beyond is the best of many windows of one core reading ahead undisturbed, with a wide margin.
* A candidate that is measured to be faster than its bound proves all of these too low, since the
  clock was low while they were measured: they are raised by as much (``bounds.certified``).
* Several threads have at most the rate of one, times their number.

Without a compiler nothing is measured and there are no peaks: then nothing is left out.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import msgspec

from collage_engine.machine.device import cache_bytes, last_level_cache_bytes, processor
from collage_engine.machine.folders import cache_folder
from collage_engine.records.errors import MeasureError
from collage_engine.records.files import atomic_file
from collage_engine.records.reasons import compiler_reason

SOURCE = Path(__file__).with_name("peaks.cc")
CONSTANT = "peaks 2"
"""Name of the constant in the store, with the version of what is derived from the measured;
the fingerprint is appended."""

CLOCK_MARGIN = 1.05
"""Factor above the fastest of many windows; chosen: a clock does not rise by more from one moment
to the next."""
FAR_MARGIN = 1.5
"""Factor above a measured rate that no clock and width confirms, because neighbours may have slowed
the measurement; chosen."""
WINDOWS = 25
"""Windows in which a rate is measured, of which the fastest counts; chosen."""

PIPES = {
    # Floating-point operations per cycle of one core by the best instruction set it has; each
    # counts both vector multiply-add pipes (four narrow ones on Arm) at two operations a lane.
    "float64": (("avx512f", 32), ("fma", 16), ("asimd", 16), ("", 8)),
    "float32": (("avx512f", 64), ("fma", 32), ("asimd", 32), ("", 16)),
    "float16": (
        ("amx_fp16", 1024),
        ("avx512_fp16", 128),
        ("asimdhp", 64),
        ("avx512f", 64),
        ("fma", 32),
        ("", 32),
    ),
    "bfloat16": (
        ("amx_bf16", 1024),
        ("avx512_bf16", 128),
        ("bf16", 128),
        ("avx512f", 64),
        ("fma", 32),
        ("", 32),
    ),
    "int8": (
        ("amx_int8", 2048),
        ("avx512_vnni", 256),
        ("avx_vnni", 128),
        ("i8mm", 256),
        ("asimddp", 128),
        ("avx512bw", 256),
        ("avx2", 128),
        ("", 64),
    ),
}


class Level(msgspec.Struct, frozen=True):
    """A level of memory as one core sees it."""

    holds: int
    """Bytes that all levels nearer than this one can keep."""
    bytes_per_s: float
    """Bytes that can be read from the level in a second, at best."""


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds for one core; ``threads`` cores have at most so many times as much."""

    flops: dict[str, float]
    """Operations in a second (FLOP/s) by element type."""
    levels: tuple[Level, ...]
    """Nearest first; the first holds 0."""
    hertz: float
    """The clock seen; 0 where it cannot be measured."""

    def compute_s(self, operations: float, dtype: str, threads: int) -> float:
        """Return seconds that so many floating-point operations take at least."""
        best = self.flops.get(dtype)
        if best is None:
            best = max(self.flops.values())
        return operations / (best * max(1, threads))

    def read_s(self, size: int, threads: int) -> float:
        """Return seconds that reading so many distinct bytes takes at least, again and again.

        What nearer levels cannot keep from one run to the next has to come from this one.
        """
        count = max(1, threads)
        return max(
            max(0, size - level.holds * count) / (level.bytes_per_s * count)
            for level in self.levels
        )

    def raised(self, factor: float) -> Peaks:
        """Return peaks that are higher by a factor, with the clock that belongs to them."""
        return Peaks(
            flops={dtype: rate * factor for dtype, rate in self.flops.items()},
            levels=tuple(Level(one.holds, one.bytes_per_s * factor) for one in self.levels),
            hertz=self.hertz * factor,
        )


def per_cycle(dtype: str, flags: frozenset[str], halves: bool = False) -> int:
    """Returns how many operations of a type one core starts in one cycle, at most.

    ``halves``: 512-bit operations take two passes through 256-bit pipes.
    """
    return max(
        count // 2 if halves and flag.startswith("avx512") else count
        for flag, count in PIPES[dtype]
        if not flag or flag in flags
    )


def runs_in_halves(model: str, flags: frozenset[str]) -> bool:
    """Return whether a processor has AVX-512 on 256-bit pipes.

    That is Zen 4, AMD's family 25 (Software Optimization Guide for the AMD Zen 4 Microarchitecture,
    2.11: floating-point unit).
    """
    return "avx512f" in flags and "AuthenticAMD 25 " in model


def measure_peaks() -> Peaks:
    """Measures one core for about half a second.

    Raises:
        MeasureError: There is no compiler.
    """
    library = ctypes.CDLL(str(_build()))
    for name in ("collage_fma_f32", "collage_fma_f64", "collage_cycles"):
        getattr(library, name).restype = ctypes.c_double
        getattr(library, name).argtypes = [ctypes.c_long]
    library.collage_read.restype = ctypes.c_double
    library.collage_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
    hertz = max(library.collage_cycles(100_000) for _ in range(WINDOWS))
    measured = {
        "float32": max(library.collage_fma_f32(50_000) for _ in range(WINDOWS)),
        "float64": max(library.collage_fma_f64(50_000) for _ in range(WINDOWS)),
    }
    flags = frozenset(processor().flags)
    halves = runs_in_halves(processor().model, flags)
    return combine(hertz, measured, _read_rates(library), flags, halves)


def combine(
    hertz: float,
    measured: dict[str, float],
    read: list[tuple[int, float]],
    flags: frozenset[str],
    halves: bool = False,
) -> Peaks:
    """Derives upper bounds from what was measured on one core.

    Args:
        hertz: The clock of the core; 0 where it is not known.
        measured: FLOP/s by element type.
        read: (bytes that nearer levels hold, bytes/s) of each memory level, nearest first.
        flags: Instruction sets of the processor.
        halves: Whether 512-bit operations take two passes; see :func:`per_cycle`.
    """
    flops = {}
    for dtype in PIPES:
        theory = per_cycle(dtype, flags, halves) * hertz
        # Without a clock only the loops are known; narrower types gain by their width at most.
        wider = {"float64": 1, "float32": 1, "float16": 4, "bfloat16": 32, "int8": 64}[dtype]
        seen = measured.get(dtype, measured["float32"] * (1 if hertz else wider))
        margin = CLOCK_MARGIN if hertz else FAR_MARGIN
        flops[dtype] = max(theory, seen) * margin
    width = 64 if "avx512f" in flags and not halves else 32
    paths = [3 * width, 64]
    levels = []
    for place, (holds, rate) in enumerate(read):
        if place < len(paths) and hertz:
            rate = max(rate, paths[place] * hertz) * CLOCK_MARGIN
        else:
            rate *= FAR_MARGIN
        levels.append(Level(holds, rate))
    # A farther level is never faster than a nearer one.
    for place in range(1, len(levels)):
        nearer, farther = levels[place - 1], levels[place]
        levels[place] = Level(farther.holds, min(farther.bytes_per_s, nearer.bytes_per_s))
    return Peaks(flops=flops, levels=tuple(levels), hertz=hertz)


def _read_rates(library: ctypes.CDLL) -> list[tuple[int, float]]:
    """Returns (bytes that nearer levels hold, best bytes/s) from L1 outwards."""
    first, second = cache_bytes(1, 32 << 10), cache_bytes(2, 256 << 10)
    last = last_level_cache_bytes()
    sizes = [(0, first // 2), (first, first + (second - first) // 2)]
    if last > 4 * second:
        sizes.append((first + second, min(last // 2, 4 * second)))
    if last <= 128 << 20:
        sizes.append((first + second + last, 4 * last))
    largest = max(size for _, size in sizes)
    memory = (ctypes.c_char * (largest + 64))()
    ctypes.memset(memory, 1, largest + 64)
    start = ctypes.addressof(memory)
    start += -start % 64
    found = []
    for holds, size in sizes:
        turns = max(1, (16 << 20) // size)
        found.append((holds, max(library.collage_read(start, size, turns) for _ in range(WINDOWS))))
    return found


@cache
def _build() -> Path:
    """Return the compiled loops, from the cache folder or made now."""
    compiler = next(
        (
            c
            for c in (shlex.split(os.environ.get("CXX", "")), ["g++"], ["clang++"])
            if c and shutil.which(c[0])
        ),
        None,
    )
    if compiler is None:
        raise MeasureError("no C++ compiler found to measure the machine's peaks; install g++")
    command = [
        *compiler,
        "-std=c++17",
        "-O2",
        "-march=native",
        "-ffp-contract=fast",
        "-shared",
        "-fPIC",
    ]
    known = SOURCE.read_bytes() + repr((command, processor().flags)).encode()
    folder = cache_folder() / "peaks"
    path = folder / f"peaks-{hashlib.sha256(known).hexdigest()[:16]}.so"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as result:
            done = subprocess.run(
                [*command, str(SOURCE), "-o", str(result)],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=300,
            )
            if done.returncode != 0:
                reason = compiler_reason(done.stderr)
                raise MeasureError(f"the peak measurement does not compile: {reason}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MeasureError(f"the peak measurement cannot be built in {folder}: {error}") from error
    return path
