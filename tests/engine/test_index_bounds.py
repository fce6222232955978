"""The check of a kernel's indices finds what lies outside a buffer, and nothing else."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")


from tvm import tirx

from collage_engine.kernels.tir_builder import (
    allocate,
    f32,
    for_range,
    load,
    loop,
    prefetch,
    seq,
    store,
    vectorized,
    when,
    workspace,
)
from tests.support.index_bounds import out_of_bounds

BUFFER = workspace((4, 16), name="buffer")


def outside(body) -> list[str]:
    return out_of_bounds(tirx.PrimFunc([], seq(allocate(BUFFER), body)))


def zeros(i, first=0):
    return vectorized(16, lambda lane: store(BUFFER, f32(0.0), i, first + lane))


def test_stores_and_loads_past_the_end_are_found() -> None:
    assert not outside(loop(4, zeros))
    (line,) = outside(loop(5, zeros))
    assert line.startswith("stores to buffer of 64 elements from 0 to 79")
    (line,) = outside(loop(4, lambda i: store(BUFFER, load(BUFFER, i, 15) * 2.0, i + 1, 0)))
    assert line.startswith("stores to")
    (line,) = outside(loop(4, lambda i: store(BUFFER, load(BUFFER, i - 1, 15) * 2.0, i, 0)))
    assert line.startswith("reads buffer of 64 elements from -1 to 47")
    vector = tirx.BufferLoad(BUFFER, [3, tirx.Ramp(tirx.const(1, "int64"), 1, 16)])
    (line,) = outside(tirx.Evaluate(vector))
    assert "from 49 to 64" in line


def test_conditions_and_extents_of_loops_count() -> None:
    assert not outside(loop(9, lambda i: when(i * 2 < 7, zeros(i))))
    assert outside(loop(9, lambda i: when(i * 2 < 9, zeros(i))))
    assert not outside(loop(9, lambda i: when(i > 3, prefetch(BUFFER, i, 0), zeros(i))))
    assert not outside(loop(4, lambda i: for_range(4 - i, lambda k: zeros(i + k))))
    assert outside(loop(4, lambda i: for_range(5 - i, lambda k: zeros(i + k))))
