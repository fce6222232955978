"""Writes quantised composites of a function as integer computations.

Done while the function's Relax module is built: each composite of partition/quantized.py becomes
one kernel over 8-bit values, to whose elements activations are applied in float32. Images between
two of them stay channels last; they are turned where somebody else reads them. What has no integer
form here stays as the model has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Call, Expr

from collage_engine.kernels.cpu import quantization as compute
from collage_engine.kernels.cpu.convolution import NO_KERNEL
from collage_engine.kernels.cpu.dots import DotProblem
from collage_engine.kernels.relax_values import ANCHOR, const
from collage_engine.kernels.scheduler import decide
from collage_engine.kernels.target import Cpu, cpu
from collage_engine.kernels.tir_builder import f32
from collage_engine.partition import quantized as table
from collage_engine.partition.patterns import Match
from collage_engine.partition.quantized_numbers import Numbers, Scaling
from collage_engine.records.graph import (
    Node,
    OperatorNumber,
    ValueIndex,
    members,
    operator_set,
)
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.products import Ints, pads, per_axis

KernelSizes: TypeAlias = tuple[int, Ints, Ints, Ints]
"""Groups of a convolution; strides, padding before and behind, and dilation by axis."""


class UnsupportedComposite(Exception):
    """A composite stays as the model has it."""


@dataclass(frozen=True)
class Sums:
    """Sums of products of 8-bit numbers, as a kernel writes them."""

    weights: np.ndarray
    """The weight as int8: output channels first."""
    zero: int
    """What stands for 0 among the numbers of the data that are multiplied."""
    packed: np.ndarray
    """The weight as the kernel reads it."""
    out: Ints
    """The shape of the result."""
    axis: int
    """The axis of the result along which the output channels lie."""
    sums: Callable[[Any, Any], Any]
    """The plain sums in int32 of the data and the packed weight."""


def limited(value: Expr, low: float, high: float) -> Expr:
    """Return a value between two limits; an infinite one is none."""
    if low > -np.inf:
        value = tirx.max(value, f32(low))
    return tirx.min(value, f32(high)) if high < np.inf else value


def activation(node: Node) -> Callable[[Expr], Expr]:
    """Return what an activation does to an element."""
    match node.op:
        case "nn.relu":
            return lambda x: limited(x, 0.0, np.inf)
        case "nn.relu6":
            return lambda x: limited(x, 0.0, 6.0)
        case "clip":
            low, high = float(node.attributes["min"]), float(node.attributes["max"])
            return lambda x: limited(x, low, high)
        case "nn.leakyrelu":
            slope = f32(float(node.attributes["alpha"]))
            return lambda x: tirx.Select(x > f32(0.0), x, x * slope)
        case "sigmoid":
            return lambda x: tirx.sigmoid(x)
        case "tanh":
            return lambda x: tirx.tanh(x)
        case "nn.silu":
            return lambda x: x * tirx.sigmoid(x)
    raise UnsupportedComposite


class Writer:
    """Writes one composite as Relax calls; ``UnsupportedComposite`` where it has no integer form.

    ``value_of`` gives the Relax value of what is made outside the composite, in the graph's order
    of axes.
    """

    def __init__(
        self, integers: Integers, builder: relax.BlockBuilder, value_of: Any, match: Match
    ) -> None:
        self.integers, self.builder, self.value_of, self.found = integers, builder, value_of, match
        self.graph = integers.graph
        self.numbers = Numbers(self.graph, match, integers.function.constant)
        self.result = self.numbers.result
        if self.result is not None and not self.result.per_tensor:
            raise UnsupportedComposite
        operands = [n for n in ("data", "residual", "left", "right") if f"{n}_float" in match]
        if not all(self.numbers.of(n).per_tensor for n in operands):
            raise UnsupportedComposite

    def write(self) -> Expr:
        """Return the value of the composite's root, by the method that is called as its kind."""
        return getattr(self, self.found.kind)()

    # Values and their layouts ------------------------------------------------------------------

    @property
    def anchor(self) -> Node:
        """Return the node that gives the composite its kind."""
        return self.graph.nodes[self.found["anchor"]]

    def image(self, index: ValueIndex) -> Expr:
        """Return a value channels last."""
        if index not in self.integers.images:
            rank = len(self.graph.values[index].type.shape)
            order = [0, *range(2, rank), 1]
            self.integers.images[index] = permuted(self.builder, self.value_of(index), order)
        return self.integers.images[index]

    def kernel(self, body: Callable[..., Any], arguments: Sequence[Expr], name: str) -> Expr:
        """Return a call of one kernel that operators behind it may be fused with."""
        return self.builder.emit(
            self.builder.call_te(body, *arguments, primfunc_name_hint=name, primfunc_attrs=ANCHOR)
        )

    def given_as_image(self, value: Expr) -> Expr:
        """Return the root's value as the graph has it, which was computed channels last.

        Where nobody reads it so, the kernel that turns it is removed as dead code.
        """
        self.integers.images[self.found.root] = value
        last = len(value.ty.shape.values) - 1
        return permuted(self.builder, value, [0, last, *range(1, last)])

    # Convolutions and products -------------------------------------------------------------------

    def conv(self) -> Expr:
        """Return a convolution."""
        node = self.anchor
        attributes = node.attributes
        rank = len(node.type.shape) - 2
        if str(attributes["data_layout"]) != "NC" + "DHW"[3 - rank :]:
            raise UnsupportedComposite
        weights, scales = self.numbers.weights()
        order = str(attributes["kernel_layout"])
        weights = weights.transpose([order.index(a) for a in "OI" + "DHW"[3 - rank :]])
        begin, end = pads(attributes["padding"], rank)
        sizes = (
            int(attributes.get("groups", 1)),
            per_axis(attributes["strides"], rank),
            (*begin, *end),
            per_axis(attributes["dilation"], rank),
        )
        kernel = self.convolution(node, np.ascontiguousarray(weights), sizes)
        residual = [self.image(self._residual())] if "residual" in self.found else []
        data = self.image(self.found["data"])
        name = f"quantized_conv{rank}d"
        value = self.anchored(kernel, data, scales, residual, name)
        return self.given_as_image(value)

    def matmul(self) -> Expr:
        """Return a matrix product with a constant."""
        if "weights" not in self.found:
            raise UnsupportedComposite
        weights, scales = self.numbers.weights()
        data = self.graph.values[self.found["data"]].type.shape
        if weights.ndim != 2 or len(data) < 2:
            raise UnsupportedComposite
        residual = [self.value_of(self._residual())] if "residual" in self.found else []
        kernel = self.product(self.anchor, np.ascontiguousarray(weights.T))
        return self.anchored(
            kernel, self.value_of(self.found["data"]), scales, residual, "quantized_matmul"
        )

    def _residual(self) -> ValueIndex:
        """Return what is added to the sums, element by element: a tensor of their shape."""
        residual = self.found["residual"]
        if self.graph.values[residual].type.shape != self.anchor.type.shape:
            raise UnsupportedComposite
        return residual

    def convolution(self, node: Node, weights: np.ndarray, sizes: KernelSizes) -> Sums:
        """Return what sums a convolution; ``weights`` as in ONNX.

        Raises:
            UnsupportedComposite: Nothing does.
        """
        shape = node.type.shape
        data = self.graph.values[self.found["data"]].type.shape
        last = (data[0], *data[2:], data[1])
        return self._sums(last, (shape[0], *shape[2:], shape[1]), weights, sizes)

    def product(self, node: Node, weights: np.ndarray) -> Sums:
        """Return what sums a matmul; ``weights``: output columns first."""
        data = self.graph.values[self.found["data"]].type.shape
        return self._sums(data, node.type.shape, weights, NO_KERNEL)

    def _sums(self, data: Ints, out: Ints, weights: np.ndarray, sizes: KernelSizes) -> Sums:
        """Return the sums over data with channels last, by our kernel rules."""
        scaling = self.numbers.of("data")
        signed = scaling.dtype == "int8"
        zero = scaling.single("the data")[1] + (128 if signed else 0)
        shape: Ints = weights.shape
        problem = DotProblem(
            True, tuple(data), tuple(out), shape, *sizes, "int8", zero=zero, signed=signed
        )
        decision = decide(problem, self.integers.cpu)
        assert decision is not None  # there are rules for all sums of 8-bit numbers
        packed = decision.pack(self.integers.cpu, weights)
        return Sums(weights, zero, packed, problem.out_shape, -1, decision.reference)

    def anchored(
        self, kernel: Sums, data: Any, scales: np.ndarray, residual: list[Any], name: str
    ) -> Expr:
        """Return the sums, and in the same kernel all that follows them."""
        step, _ = self.numbers.of("data").single("the data")
        factor = (scales.astype(np.float64) * step).astype(np.float32)
        # What the sums lack because the data's zero is not 0.
        totals = kernel.weights.reshape(len(kernel.weights), -1).sum(1, dtype=np.int64)
        correction = (-kernel.zero * totals).astype(np.int32)
        bias = self.numbers.bias()
        if bias is not None and self.numbers.bias_fits():
            whole = np.rint(bias.astype(np.float64) / factor)
            if np.abs(whole + correction).max(initial=0) < 2**31:
                correction, bias = (correction + whole).astype(np.int32), None
        result, limits = self.result, self.numbers.clamp()
        # Without a sum or a curve in between, one factor does for both scales.
        merged = result is not None and limits is not None and not residual
        low, high = -np.inf, np.inf
        if merged:
            assert result is not None and limits is not None
            out, _ = result.single("the result")
            factor = (factor.astype(np.float64) / out).astype(np.float32)
            bias = None if bias is None else (bias.astype(np.float64) / out).astype(np.float32)
            low, high = (limit / out for limit in limits)
        constants = [const(correction), const(factor)]
        constants += [] if bias is None else [const(bias)]

        def body(x: te.Tensor, w: te.Tensor, *more: te.Tensor) -> Expr:
            shift, scale = more[0], more[1]
            rest = list(more[2:])
            offset = rest.pop(0) if bias is not None else None
            sums = kernel.sums(x, w)

            def element(*i: Any) -> Expr:
                c = i[kernel.axis]
                value = (sums(*i) + shift(c)).astype("float32") * scale(c)
                if offset is not None:
                    value = value + offset(c)
                if merged and result is not None:
                    value = limited(value, low, high)
                    return compute.rounded(value, result, scale=False)
                if rest:
                    value = value + compute.real(rest[0](*i), self.numbers.of("residual"))
                if "activation" in self.found:
                    value = activation(self.graph.nodes[self.found["activation"]])(value)
                return value if result is None else compute.rounded(value, result)

            return te.compute(kernel.out, element, "requantized")

        arguments = [data, const(kernel.packed), *constants, *residual]
        return self.kernel(body, arguments, name)

    # Everything else -----------------------------------------------------------------------------

    def binary(self) -> Expr:
        """Return a sum, difference or product of two values."""
        left, right = self.found["left"], self.found["right"]
        node, result = self.anchor, self.result
        ranks = {len(self.graph.values[i].type.shape) for i in (left, right)}
        if result is None or len(ranks) > 1:
            raise UnsupportedComposite
        images = len(node.type.shape) == 4 and (
            left in self.integers.images or right in self.integers.images
        )
        read = self.image if images else self.value_of
        scalings = [self.numbers.of("left"), self.numbers.of("right")]

        def combine(a: Expr, b: Expr) -> Expr:
            return {"add": a + b, "subtract": a - b, "multiply": a * b}[node.op]

        def body(a: te.Tensor, b: te.Tensor) -> Expr:
            shape = [max(int(p), int(q)) for p, q in zip(a.shape, b.shape, strict=True)]

            def at(x: te.Tensor, i: tuple[Any, ...], scaling: Scaling) -> Expr:
                """Return an element, of an axis of one the only one."""
                pairs = zip(i, x.shape, strict=True)
                return compute.real(x(*(0 if int(e) == 1 else p for p, e in pairs)), scaling)

            def element(*i: Any) -> Expr:
                value = combine(at(a, i, scalings[0]), at(b, i, scalings[1]))
                if "activation" in self.found:
                    value = activation(self.graph.nodes[self.found["activation"]])(value)
                return compute.rounded(value, result)

            return te.compute(shape, element, "requantized")

        value = self.pointwise(body, [read(left), read(right)], f"quantized_{node.op}")
        return self.given_as_image(value) if images else value

    def pointwise(self, body: Callable[..., Any], arguments: Sequence[Expr], name: str) -> Expr:
        """Return a call of an elementwise kernel."""
        return self.builder.emit(self.builder.call_te(body, *arguments, primfunc_name_hint=name))

    def rescaled(self, value: Expr, source: Scaling) -> Expr:
        """Return a quantised value brought from one scale to the result's."""
        result = self.result
        if result is None:
            raise UnsupportedComposite
        return value if source.equals(result) else self.mapped(value, source, lambda x: x)

    def mapped(self, value: Expr, source: Scaling, function: Callable[[Expr], Expr]) -> Expr:
        """Return a function of a quantised value, at the result's scale."""
        result = self.result
        if result is None:
            raise UnsupportedComposite

        def body(x: te.Tensor) -> Expr:
            def element(*i: Any) -> Expr:
                return compute.rounded(function(compute.real(x(*i), source)), result)

            return te.compute(x.shape, element, "requantized")

        return self.pointwise(body, [value], "requantized")

    def operator(self, value: Expr) -> Expr:
        """Return the anchor itself on 8-bit values."""
        call = self.integers.function.model.call(self.found["anchor"])
        return self.builder.emit(Call(call.op, [value, *call.args[1:]], call.attrs, call.ty_args))

    def pool(self) -> Expr:
        """Return a maximum over windows."""
        if "max_pool" not in self.anchor.op or self.anchor.op.startswith("nn.adaptive"):
            raise UnsupportedComposite  # averages are sums of floats anyway
        return self.view()

    def view(self) -> Expr:
        """Return a change of shape."""
        value = self.operator(self.value_of(self.found["data"]))
        return self.rescaled(value, self.numbers.of("data"))

    def concat(self) -> Expr:
        """Return a concatenation; parts of other scales are rescaled first."""
        names = [f"part{i}" for i in range(table.MOST_CONCATENATED) if f"part{i}" in self.found]
        scalings = [self.numbers.of(name) for name in names]
        if not all(s.per_tensor for s in scalings):
            raise UnsupportedComposite
        parts = [
            self.rescaled(self.value_of(self.found[name]), given)
            for name, given in zip(names, scalings, strict=True)
        ]
        axis = int(self.anchor.attributes.get("axis") or 0)
        return self.builder.emit(relax.op.concat(parts, axis))

    def unary(self) -> Expr:
        """Return an activation."""
        data, function = self.value_of(self.found["data"]), activation(self.anchor)
        return self.mapped(data, self.numbers.of("data"), function)

    def requantize(self) -> Expr:
        """Return a change of scale alone."""
        return self.rescaled(self.value_of(self.found["data"]), self.numbers.of("data"))


def permuted(builder: relax.BlockBuilder, value: Expr, order: list[int]) -> Expr:
    """Return the axes in another order, by a kernel of its own.

    Fused with a conversion to or from float32 it would walk through four times the memory
    plane by plane; bytes are turned in the caches, and the conversion runs straight.
    """
    shape = [int(e) for e in value.ty.shape.values]

    def body(x: te.Tensor) -> Expr:
        def element(*i: Any) -> Expr:
            places = dict(zip(order, i, strict=True))
            return x(*(places[axis] for axis in range(len(order))))

        return te.compute([shape[axis] for axis in order], element, "turned")

    return builder.emit(
        builder.call_te(body, value, primfunc_name_hint="turned", primfunc_attrs={"op_pattern": 8})
    )


class Integers:
    """The composites of one function, and the values they have made so far."""

    def __init__(self, function: Function, writer: type[Writer]) -> None:
        self.function, self.graph, self.writer = function, function.graph, writer
        leaving = operator_set(self.graph.record.producers(function.outputs))
        self.found = table.within(self.graph, function.nodes, leaving)
        self.inside = operator_set(i for each in self.found.values() for i in members(each.nodes))
        self.cpu: Cpu = cpu(function.instance.threads)
        self.images: dict[int, Any] = {}
        """Channels-last forms of values, by index."""
        self.given_up = 0

    def skips(self, index: OperatorNumber) -> bool:
        """Tell whether an operator is inside a composite and not its root."""
        inside = self.inside & ~self.given_up
        return bool(inside >> index & 1) and index not in self.found

    def emit(
        self, builder: relax.BlockBuilder, index: OperatorNumber, value_of: Callable[[int], Any]
    ) -> Any | None:
        """Return the value of a composite's root as the graph has it; None when it is none of ours.

        ``value_of`` gives the Relax value of what is made outside the composite. A composite
        without an integer form gives None as well and is then ``opened``.
        """
        match = self.found.get(index)
        if match is None or self.given_up >> index & 1:
            return None
        try:
            return self.writer(self, builder, value_of, match).write()
        except (UnsupportedComposite, UnsupportedError):
            self.given_up |= match.nodes
            return None

    def opened(self, index: OperatorNumber) -> list[OperatorNumber]:
        """Return the operators of a composite that was given up, which are emitted one by one."""
        match = self.found.get(index)
        if match is None or not self.given_up >> index & 1:
            return [index]
        return list(members(match.nodes))
