"""How many steps 8-bit results may be off, by the number of roundings."""

from __future__ import annotations

import numpy as np
import pytest

from collage_engine.lowering.rounding import most_steps, relative_bound, roundings, steps_apart
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import GraphRecord, Node, TensorType


def test_roundings_are_counted_along_the_longest_path() -> None:
    kind = (TensorType((4,), "uint8"),)
    ops = [
        ((), ""),
        ((0,), "quantize"),
        ((1,), "dequantize"),
        ((2,), "quantize"),
        ((0,), "quantize"),
        ((3, 4), "concat"),
    ]
    nodes = tuple(
        Node(index=i, form="call" if op else "parameter", op=op, inputs=inputs, types=kind)
        for i, (inputs, op) in enumerate(ops)
    )
    graph = DataflowGraph(GraphRecord(nodes=nodes, inputs=(0,), outputs=(5,)))
    everything = roundings(graph, 0b111111)
    assert [everything[i] for i in range(6)] == [0, 1, 1, 2, 1, 2]
    # What was rounded before the set is the truth already.
    assert roundings(graph, 0b101000) == {3: 1, 5: 1}


@pytest.mark.parametrize(("depth", "steps"), [(0, 0), (1, 1), (4, 3), (9, 4)])
def test_differences_grow_as_a_random_walk(depth: int, steps: int) -> None:
    assert most_steps(depth) == steps
    assert relative_bound(depth) >= steps / 255


def test_more_than_one_step_is_rare() -> None:
    true = np.zeros(10_000, np.uint8)
    off = true.copy()
    off[:5] = 2
    assert steps_apart(off, true, 1.0, 1) is not None
    assert steps_apart(off, true, 1.0, 4) is None
    off[:50] = 2
    assert "off by more than one step" in str(steps_apart(off, true, 1.0, 4))
    off[0] = 4
    assert "off by 4 steps, 3 are allowed" in str(steps_apart(off, true, 1.0, 4))


def test_dequantised_values_are_held_to_steps_of_their_scale() -> None:
    true = np.arange(100, dtype=np.float32) * np.float32(0.03)
    assert steps_apart(true + np.float32(0.03), true, 0.03, 1) is None
    assert steps_apart(true + np.float32(0.06), true, 0.03, 1) is not None
