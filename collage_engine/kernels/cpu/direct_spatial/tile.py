"""Chooses the register tile of a convolution with positions in the vector lanes."""

from __future__ import annotations

from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.cpu.direct_spatial.plan import MOST_CHANNELS, MOST_VECTORS
from collage_engine.kernels.cpu.writing.tile_cost import cost, fits
from collage_engine.kernels.target import Cpu


def channels_of(cpu: Cpu, channels: int, positions: int) -> int:
    """Returns the output channels of a register tile that are estimated to cost least."""
    lanes = cpu.lanes("float32")
    vectors = -(-positions // lanes)
    best = None
    for h in range(1, min(MOST_CHANNELS, channels) + 1):
        for v in range(1, min(MOST_VECTORS, vectors) + 1):
            if not fits(cpu, h, v):
                continue
            padded = -(-channels // h) * h
            estimate = (cost(cpu, padded, vectors, h, v), -h)
            if best is None or estimate < best:
                best = estimate
    assert best is not None
    return -best[1]


def vectors_of(cpu: Cpu, height: int, vectors: int) -> int:
    """Return the vectors of a register tile of so many channels, of so many vectors in all."""
    most = min(MOST_VECTORS, vectors)
    widths = [v for v in range(1, most + 1) if fits(cpu, height, v)] or [1]
    return min(widths, key=lambda v: (cost(cpu, height, vectors, height, v), -v))


def positions_of(problem: ConvProblem, cpu: Cpu) -> int:
    """Returns how many positions are computed, surplus columns and whole vectors included."""
    pitches = [
        -(-(b + s + a) // stride)
        for b, s, a, stride in zip(
            problem.before, problem.size, problem.after, problem.strides, strict=True
        )
    ]
    span = 0
    for o, p in zip(problem.out, pitches, strict=True):
        span = span * p + (o - 1)
    lanes = cpu.lanes("float32")
    return -(-(span + 1) // lanes) * lanes
