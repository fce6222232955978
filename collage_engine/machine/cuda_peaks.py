"""Derives what no program can exceed on an NVIDIA device from what its driver says of it.

Nothing is measured: a bound must hold at the best moment. Operations a second are those of its
multiprocessors' widest units at the highest clock; bytes a second those of its memory's pins, and
of the multiprocessors' paths to what the last-level cache holds. Sources: NVIDIA's CUDA C++
programming guide (arithmetic throughput by compute capability) and architecture whitepapers
(dense tensor-core rates).
"""

from __future__ import annotations

from collage_engine.machine.cuda import CudaDevice
from collage_engine.machine.peaks import Level, Peaks

PER_CYCLE: dict[int, dict[str, int]] = {
    # Operations of a multiprocessor in a cycle, a multiply-add counted as two.
    70: {"float64": 64, "float32": 128, "float16": 1024, "int8": 512},
    75: {"float64": 4, "float32": 128, "float16": 1024, "int8": 2048},
    80: {"float64": 128, "float32": 128, "tf32": 1024, "float16": 2048, "int8": 4096},
    86: {"float64": 4, "float32": 256, "tf32": 512, "float16": 1024, "int8": 2048},
    89: {"float64": 4, "float32": 256, "tf32": 512, "float16": 1024, "int8": 2048},
    90: {"float64": 256, "float32": 256, "tf32": 2048, "float16": 4096, "int8": 8192},
}
"""Operations of a multiprocessor in a cycle by element type, for each compute capability, as 10 ×
major + minor."""
NEWER = 4
"""Factor that a generation which is not listed does at most of what the widest listed one does;
chosen."""
EMULATED = 3
"""Products in tf32 that one in float32 may be made of (CUTLASS's fast float32)."""
CACHE_BYTES = 128
"""Bytes that a multiprocessor gets in a clock tick from its nearest cache, more than any farther
one gives: 32 banks of 4 bytes (CUDA C++ Programming Guide, shared memory)."""
CLOCK_MARGIN = 1.05
"""Factor above the clock that the driver states, for boosts beyond it; chosen."""
MEMORY_MARGIN = 1.1
"""Factor above the bandwidth that clock and bus width give; chosen."""


def device_peaks(device: CudaDevice) -> Peaks | None:
    """Returns upper bounds for the whole device; None where its driver does not tell its clocks."""
    if not (device.clock_khz and device.memory_clock_khz and device.bus_bits):
        return None
    hertz = device.clock_khz * 1e3 * CLOCK_MARGIN
    units = device.multiprocessors * hertz
    number = 10 * device.capability[0] + device.capability[1]
    rates = dict(PER_CYCLE[90])
    if number in PER_CYCLE:
        rates = dict(PER_CYCLE[number])
    elif number > max(PER_CYCLE):
        rates = {dtype: NEWER * rate for dtype, rate in rates.items()}
        # From there on libraries make float32 of narrower products.
        rates["float32"] = rates["tf32"]
    tf32 = rates.setdefault("tf32", rates["float32"])
    rates["float32"] = max(rates["float32"], -(-tf32 // EMULATED))
    rates["bfloat16"] = rates["float16"]
    cache = units * CACHE_BYTES
    # Every pin of the memory makes two transfers a clock.
    memory = 2 * device.memory_clock_khz * 1e3 * device.bus_bits / 8 * MEMORY_MARGIN
    return Peaks(
        flops={dtype: rate * units for dtype, rate in rates.items()},
        levels=(Level(0, cache), Level(_kept(device), min(cache, memory))),
        hertz=hertz,
    )


def _kept(device: CudaDevice) -> int:
    """Return bytes that may stay on the chip from one run to the next.

    These are the last-level cache, and what the multiprocessors hold themselves (256 KiB of cache
    and as much of registers).
    """
    return device.l2_bytes + device.multiprocessors * (512 << 10)
