"""Quantised composites are found, with their numbers, on graphs made from records alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collage_engine.partition import quantized
from collage_engine.partition.greedy import greedy
from collage_engine.partition.patterns import Match
from collage_engine.partition.quantized import completed, pattern_table
from collage_engine.partition.quantized_numbers import Numbers
from collage_engine.partition.rules import CandidateSource, composite_rules
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import UnsupportedError
from tests.support.valued_graph import ValuedGraph


class Graph(ValuedGraph):
    """A graph of quantised values: what enters is of 8 bits."""

    def input(self, *shape: int, dtype: str = "uint8") -> int:
        return super().input(*shape, dtype=dtype)

    def dequantize(self, x: int, scale: Any = 0.5, zero: Any = 0, axis: int = 0) -> int:
        kind = self.type(x)
        scales, zeros = self.const(scale, "float32"), self.const(zero, kind.dtype)
        return self.add_call("dequantize", kind.shape, x, scales, zeros, axis=axis)

    def quantize(self, x: int, scale: float = 0.25, zero: int = 3, dtype: str = "uint8") -> int:
        scales, zeros = self.const(scale, "float32"), self.const(zero, dtype)
        shape = self.type(x).shape
        return self.add_call("quantize", shape, x, scales, zeros, dtype=dtype, axis=1)

    def weights(self, *shape: int, zero: Any = 0, scale: Any = 0.1, axis: int = 0) -> int:
        values = (np.arange(np.prod(shape)) % 101 - 50).reshape(shape)
        return self.dequantize(self.const(values, "int8"), scale, zero, axis)

    def conv(self, x: int, w: int) -> int:
        shape = self.type(x).shape
        extents = (1, self.type(w).shape[0], *shape[2:])
        return self.conv2d(x, w, extents, padding=[1, 1, 1, 1])

    def bias(self, x: int, values: Any, scale: Any) -> int:
        whole = self.dequantize(self.const(values, "int32"), scale, np.zeros(len(values)))
        shaped = self.add_call("reshape", (1, len(values), 1, 1), whole)
        return self.add_call("add", self.type(x).shape, x, shaped)

    def add(self, a: int, b: int) -> int:
        return self.add_call("add", self.type(a).shape, a, b)

    def relu(self, x: int) -> int:
        return self.add_call("nn.relu", self.type(x).shape, x)

    def found(self, *outputs: int) -> list[Match]:
        graph = self.build(*outputs)
        return list(quantized.within(graph, graph.everything).values())

    def numbers(self, found: Match, *outputs: int) -> Numbers:
        return Numbers(self.build(*outputs), found, self.array)


def whole(g: Graph) -> int:
    """Convolution, bias, residual, activation and both ends quantised."""
    x, r = g.dequantize(g.input(1, 4, 8, 8), 0.5, 7), g.dequantize(g.input(1, 6, 8, 8), 0.3, 9)
    y = g.conv(x, g.weights(6, 4, 3, 3, scale=np.arange(1, 7) / 100, zero=np.zeros(6)))
    y = g.bias(y, range(6), np.arange(1, 7) / 100 * np.float32(0.5))
    return g.quantize(g.relu(g.add(y, r)))


def test_convolution_with_everything_is_one_composite() -> None:
    g = Graph()
    y = whole(g)
    (found,) = g.found(y)
    assert found.kind == "conv" and found.root == y
    assert found.nodes == g.build(y).everything
    for name in ("data", "weights", "bias", "residual", "activation", "quantize"):
        assert name in found
    numbers = g.numbers(found, y)
    assert numbers.of("data").single("x") == (0.5, 7)
    assert numbers.of("residual").single("r") == (pytest.approx(0.3), 9)
    assert numbers.result is not None and numbers.result.single("y") == (0.25, 3)
    weights, scales = numbers.weights()
    assert weights.dtype == np.int8 and weights.shape == (6, 4, 3, 3)
    np.testing.assert_allclose(scales, np.arange(1, 7) / 100, rtol=1e-6)
    assert numbers.clamp() == (0.0, np.inf)


def test_scale_of_an_integer_bias_is_checked() -> None:
    g = Graph()
    y = whole(g)
    (found,) = g.found(y)
    numbers = g.numbers(found, y)
    assert numbers.bias_fits()
    np.testing.assert_allclose(numbers.bias(), np.arange(6) * np.arange(1, 7) / 200, rtol=1e-6)
    other = Graph()
    x = other.dequantize(other.input(1, 4, 8, 8))
    y = other.conv(x, other.weights(6, 4, 3, 3))
    y = other.quantize(other.bias(y, range(6), np.full(6, 0.2)))
    (found,) = other.found(y)
    numbers = other.numbers(found, y)
    assert not numbers.bias_fits()
    np.testing.assert_allclose(numbers.bias(), np.arange(6) / 5, rtol=1e-6)


def test_inner_value_that_leaves_ends_the_composite() -> None:
    g = Graph()
    y = whole(g)
    relu = next(n.index for n in g.nodes if n.op == "nn.relu")
    (found,) = g.found(relu, y)
    assert found.root == relu and "residual" in found and "quantize" not in found


def test_value_read_twice_before_its_quantize_is_no_composite() -> None:
    g = Graph()
    x = g.dequantize(g.input(1, 4, 8, 8))
    y = g.conv(x, g.weights(4, 4, 3, 3))
    a, b = g.quantize(y), g.quantize(y, 0.5)
    assert [f.kind for f in g.found(a, b)] == ["conv"]  # with a float result
    assert "quantize" not in g.found(a, b)[0]


def test_zero_points_of_weights_are_absorbed_or_refused() -> None:
    g = Graph()
    y = g.quantize(g.conv(g.dequantize(g.input(1, 4, 8, 8)), g.weights(4, 4, 3, 3, zero=-50)))
    (found,) = g.found(y)
    weights, _ = g.numbers(found, y).weights()
    assert weights.min() == 0 and weights.max() == 100
    g = Graph()
    y = g.quantize(g.conv(g.dequantize(g.input(1, 4, 8, 8)), g.weights(4, 4, 3, 3, zero=-100)))
    (found,) = g.found(y)
    with pytest.raises(UnsupportedError, match="zero points that int8 cannot absorb"):
        g.numbers(found, y).weights()


def test_weights_scaled_along_inputs_are_refused() -> None:
    g = Graph()
    scales = np.arange(1, 5) / 100
    w = g.weights(6, 4, 3, 3, scale=scales, zero=np.zeros(4), axis=1)
    y = g.quantize(g.conv(g.dequantize(g.input(1, 4, 8, 8)), w))
    (found,) = g.found(y)
    with pytest.raises(UnsupportedError, match="another axis than outputs"):
        g.numbers(found, y).weights()


def test_composite_is_one_candidate_with_its_name_and_greedy_keeps_it_whole() -> None:
    g = Graph()
    y = whole(g)
    graph = g.build(y)
    instance = ToolchainInstance(toolchain="some", threads=1)
    spec = composite_rules("quantized", pattern_table("some"))
    candidates = spec.candidates(graph)
    largest = max(candidates, key=lambda c: c.sub_graph.inside.bit_count())
    assert [name for name, _ in largest.sub_graph.composites] == ["some.quantized_conv"]
    assert largest.sub_graph.inside == graph.everything
    source = CandidateSource(instance=instance, spec=spec, supports=lambda index: None)
    (partition,) = greedy(graph, [source]).partitions
    assert partition.composites == (("some.quantized_conv", graph.operators),)


def test_blocks_hold_composites_whole_or_not_at_all() -> None:
    g = Graph()
    first = whole(g)
    x = g.dequantize(first)
    second = g.quantize(g.conv(x, g.weights(4, 6, 3, 3)))
    graph = g.build(second)
    a, b = (f.nodes for f in sorted(g.found(second), key=lambda f: f.root))
    # Without its weights' dequantize, and with the next one's data already.
    cut = 1 << first | 1 << x
    assert completed(graph, [cut]) == [a]
    assert completed(graph, [1 << x]) == []
    assert completed(graph, [cut | 1 << second]) == [a | b]
