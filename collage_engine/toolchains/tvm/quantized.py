"""Quantised composites of a function, written as integer computations.

Done while the function's Relax module is built: each composite of partition/quantized.py becomes
one kernel over 8-bit values. Images between two of them stay channels last; they are turned where
somebody else reads them. What has no integer form here stays as the model has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from collage_engine.model.index_set import IndexSet, members
from collage_engine.partition import quantized as table
from collage_engine.partition.quantized import Quantized
from collage_engine.partition.quantized_numbers import Numbers, Scaling
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.tvm.legalize import quantized as compute
from collage_engine.toolchains.tvm.legalize.common import ANCHOR, const, constant_of
from collage_engine.toolchains.tvm.legalize.quantized import Kernel, f32
from collage_engine.toolchains.tvm.target import Cpu, cpu


class _NoForm(Exception):
    """The composite stays as the model has it."""


class Integers:
    """The composites of one function, and the values they have made so far."""

    def __init__(self, function: Function) -> None:
        self.function, self.graph = function, function.graph
        leaving = sum(1 << i for i in function.outputs)
        self.found = {}
        if not function.instance.architecture:  # these kernels are for processors
            self.found = table.within(self.graph, function.nodes, leaving)
        self.inside: IndexSet = sum(each.nodes for each in self.found.values())
        self.cpu: Cpu = cpu(function.instance.threads)
        self.images: dict[int, Any] = {}
        """Channels-last forms of values, by node."""
        self.plain: dict[int, Any] = {}
        self.given_up: IndexSet = 0

    def skips(self, index: int) -> bool:
        """Whether a node is inside a composite and not its root."""
        inside = self.inside & ~self.given_up
        return bool(inside >> index & 1) and index not in self.found

    def emit(
        self, builder: relax.BlockBuilder, index: int, value_of: Callable[[int], Any]
    ) -> Any | None:
        """The value of a composite's root as the graph has it; None when it is none of ours.

        ``value_of`` gives the Relax value of a node outside the composite. A composite without
        an integer form gives None as well and is then ``opened``.
        """
        found = self.found.get(index)
        if found is None or self.given_up >> index & 1:
            return None
        writer = _Writer(self, builder, value_of, found)
        try:
            return writer.write()
        except (_NoForm, UnsupportedError):
            self.given_up |= found.nodes
            return None

    def opened(self, index: int) -> list[int]:
        """The nodes of a composite that was given up, in order: they are emitted one by one."""
        found = self.found.get(index)
        if found is None or not self.given_up >> index & 1:
            return [index]
        return list(members(found.nodes))

    def read_as_image(self, index: int) -> bool:
        """Whether every reader of a value takes it channels last."""
        graph = self.graph
        if index in self.function.outputs:
            return False
        for user in graph.users[index]:
            if not self.function.nodes >> user & 1:
                return False
            root = next((r for r, f in self.found.items() if f.nodes >> user & 1), None)
            if root is None or not _takes_images(graph.nodes, self.found[root]):
                return False
        return True


def _takes_images(nodes: Sequence[Node], found: Quantized) -> bool:
    if found.kind == "conv":
        return True
    return found.kind == "binary" and len(nodes[found["anchor"]].type.shape) == 4


class _Writer:
    def __init__(
        self, integers: Integers, builder: relax.BlockBuilder, value_of: Any, found: Quantized
    ) -> None:
        self.integers, self.builder, self.value_of, self.found = integers, builder, value_of, found
        self.graph = integers.graph
        self.numbers = Numbers(self.graph, found, integers.function.constant)
        self.result = self.numbers.result
        if self.result is not None and not self.result.per_tensor:
            raise _NoForm
        operands = [n for n in ("data", "residual", "left", "right") if f"{n}_float" in found]
        if not all(self.numbers.of(n).per_tensor for n in operands):
            raise _NoForm

    def write(self) -> Any:
        kinds = {
            "conv": self.conv, "matmul": self.matmul, "binary": self.binary, "pool": self.pool,
            "concat": self.concat, "view": self.view, "unary": self.unary,
            "requantize": self.requantize,
        }  # fmt: skip
        return kinds[self.found.kind]()

    # Values and their layouts ------------------------------------------------------------------

    @property
    def anchor(self) -> Node:
        return self.graph.nodes[self.found["anchor"]]

    def node_of(self, name: str) -> int:
        return self.found[name]

    def plain(self, index: int) -> Any:
        """A value in the order the graph has it."""
        if index in self.integers.plain:
            return self.integers.plain[index]
        if index in self.integers.images:
            return self._turned(index)
        return self.value_of(index)

    def _turned(self, index: int) -> Any:
        rank = len(self.graph.nodes[index].type.shape)
        value = self.permuted(self.integers.images[index], [0, rank - 1, *range(1, rank - 1)])
        self.integers.plain[index] = value
        return value

    def permuted(self, value: Any, order: list[int]) -> Any:
        """Axes in another order, by a kernel of its own.

        Fused with a conversion to or from float32 it would walk through four times the memory
        plane by plane; bytes are turned in the caches, and the conversion runs straight.
        """
        shape = [int(e) for e in value.ty.shape.values]

        def body(x: te.Tensor) -> Any:
            def element(*i: Any) -> Any:
                places = dict(zip(order, i, strict=True))
                return x(*(places[axis] for axis in range(len(order))))

            return compute.elementwise([shape[axis] for axis in order], element, "turned")

        return self.builder.emit(
            self.builder.call_te(
                body, value, primfunc_name_hint="turned", primfunc_attrs={"op_pattern": 8}
            )
        )

    def image(self, index: int) -> Any:
        """A value channels last."""
        if index not in self.integers.images:
            rank = len(self.graph.nodes[index].type.shape)
            order = [0, *range(2, rank), 1]
            self.integers.images[index] = self.permuted(self.plain(index), order)
        return self.integers.images[index]

    def kernel(self, body: Callable[..., Any], arguments: Sequence[Expr], name: str) -> Any:
        return self.builder.emit(
            self.builder.call_te(body, *arguments, primfunc_name_hint=name, primfunc_attrs=ANCHOR)
        )

    def given_as_image(self, value: Any) -> Any:
        """The root's value, which was computed channels last."""
        root = self.found.root
        self.integers.images[root] = value
        if self.integers.read_as_image(root):
            # Nobody asks for it in the graph's order; what stands there is never read.
            return value
        return self._turned(root)

    # Convolutions and products -------------------------------------------------------------------

    def conv(self) -> Any:
        node = self.anchor
        attributes = node.attributes
        rank = len(node.type.shape) - 2
        if str(attributes["data_layout"]) != "NC" + "DHW"[3 - rank :]:
            raise _NoForm
        weights, scales = self.numbers.weights()
        order = str(attributes["kernel_layout"])
        weights = weights.transpose([order.index(a) for a in "OI" + "DHW"[3 - rank :]])
        groups = int(attributes.get("groups", 1))
        padding = _ints(attributes["padding"], rank)
        padding = padding if len(padding) == 2 * rank else padding * 2
        shape = node.type.shape
        depthwise = groups > 1 and weights.shape[:2] == (groups, 1)
        if depthwise and self.graph.nodes[self.node_of("data")].type.shape[1] != groups:
            raise _NoForm
        kernel = Kernel(
            "depthwise" if depthwise else "conv", np.ascontiguousarray(weights),
            (shape[0], *shape[2:], shape[1]), self.numbers.of("data"), groups,
            tuple(_ints(attributes["strides"], rank)), tuple(padding),
            tuple(_ints(attributes["dilation"], rank)),
        )  # fmt: skip
        residual = [self.image(self.node_of("residual"))] if "residual" in self.found else []
        data = self.image(self.node_of("data"))
        name = f"quantized_conv{rank}d"
        value = self.anchored(kernel, data, scales, residual, name)
        return self.given_as_image(value)

    def matmul(self) -> Any:
        if "weights" not in self.found:
            raise _NoForm
        weights, scales = self.numbers.weights()
        data = self.graph.nodes[self.node_of("data")].type.shape
        if weights.ndim != 2 or len(data) < 2:
            raise _NoForm
        residual = []
        if "residual" in self.found:
            if self.graph.nodes[self.node_of("residual")].type.shape != self.anchor.type.shape:
                raise _NoForm
            residual = [self.plain(self.node_of("residual"))]
        kernel = Kernel(
            "product", np.ascontiguousarray(weights.T), self.anchor.type.shape,
            self.numbers.of("data"), 1, (1,), (0, 0), (1,),
        )  # fmt: skip
        return self.anchored(
            kernel, self.plain(self.node_of("data")), scales, residual, "quantized_matmul"
        )

    def anchored(
        self, kernel: Kernel, data: Any, scales: np.ndarray, residual: list[Any], name: str
    ) -> Any:
        """The sums, and in the same kernel all that follows them."""
        step, _ = self.numbers.of("data").single("the data")
        factor = (scales.astype(np.float64) * step).astype(np.float32)
        correction = kernel.correction()
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

        def body(x: Any, w: Any, *more: Any) -> Any:
            shift, scale = more[0], more[1]
            rest = list(more[2:])
            offset = rest.pop(0) if bias is not None else None
            sums = kernel.sums(x, w)

            def element(*i: Any) -> Any:
                c = i[-1]
                value = (sums(*i) + shift(c)).astype("float32") * scale(c)
                if offset is not None:
                    value = value + offset(c)
                if merged and result is not None:
                    value = _limited(value, low, high)
                    return compute.rounded(value, result, scale=False)
                if rest:
                    value = value + compute.real(rest[0](*i), self.numbers.of("residual"))
                if "activation" in self.found:
                    value = _activation(self.graph.nodes[self.found["activation"]])(value)
                return value if result is None else compute.rounded(value, result)

            return compute.elementwise(kernel.out, element, "requantized")

        arguments = [data, const(kernel.packed(self.integers.cpu)), *constants, *residual]
        return self.kernel(body, arguments, name)

    # Everything else -----------------------------------------------------------------------------

    def binary(self) -> Any:
        left, right = self.node_of("left"), self.node_of("right")
        node, result = self.anchor, self.result
        shapes = [self.graph.nodes[i].type.shape for i in (left, right)]
        if result is None or shapes[0] != shapes[1]:
            raise _NoForm
        images = len(node.type.shape) == 4 and (
            left in self.integers.images or right in self.integers.images
        )
        read = self.image if images else self.plain
        scalings = [self.numbers.of("left"), self.numbers.of("right")]

        def combine(a: Any, b: Any) -> Any:
            return {"add": a + b, "subtract": a - b, "multiply": a * b}[node.op]

        def body(a: Any, b: Any) -> Any:
            def element(*i: Any) -> Any:
                value = combine(compute.real(a(*i), scalings[0]), compute.real(b(*i), scalings[1]))
                if "activation" in self.found:
                    value = _activation(self.graph.nodes[self.found["activation"]])(value)
                return compute.rounded(value, result)

            return compute.elementwise(a.shape, element, "requantized")

        value = self.pointwise(body, [read(left), read(right)], f"quantized_{node.op}")
        return self.given_as_image(value) if images else value

    def pointwise(self, body: Callable[..., Any], arguments: Sequence[Expr], name: str) -> Any:
        return self.builder.emit(self.builder.call_te(body, *arguments, primfunc_name_hint=name))

    def rescaled(self, value: Any, source: Scaling) -> Any:
        """From one scale to the result's."""
        result = self.result
        if result is None:
            raise _NoForm
        if source.equals(result):
            return value

        def body(x: Any) -> Any:
            return compute.elementwise(
                x.shape, lambda *i: compute.rounded(compute.real(x(*i), source), result), "rescaled"
            )

        return self.pointwise(body, [value], "rescaled")

    def operator(self, value: Any) -> Any:
        """The anchor itself on 8-bit values."""
        call = self.integers.function.model.expr(self.found["anchor"])
        from tvm.ir import Call

        return self.builder.emit(Call(call.op, [value, *call.args[1:]], call.attrs, call.ty_args))

    def pool(self) -> Any:
        if "max_pool" not in self.anchor.op or self.anchor.op.startswith("nn.adaptive"):
            raise _NoForm  # averages are sums of floats anyway
        value = self.operator(self.plain(self.node_of("data")))
        return self.rescaled(value, self.numbers.of("data"))

    def view(self) -> Any:
        value = self.operator(self.plain(self.node_of("data")))
        return self.rescaled(value, self.numbers.of("data"))

    def concat(self) -> Any:
        names = [f"part{i}" for i in range(table.MOST_CONCATENATED) if f"part{i}" in self.found]
        scalings = [self.numbers.of(name) for name in names]
        if not all(s.per_tensor for s in scalings):
            raise _NoForm
        parts = [
            self.rescaled(self.plain(self.node_of(name)), given)
            for name, given in zip(names, scalings, strict=True)
        ]
        axis = int(self.anchor.attributes.get("axis") or 0)
        return self.builder.emit(relax.op.concat(parts, axis))

    def unary(self) -> Any:
        result, source = self.result, self.numbers.of("data")
        function = _activation(self.anchor)
        if result is None:
            raise _NoForm

        def body(x: Any) -> Any:
            return compute.elementwise(
                x.shape,
                lambda *i: compute.rounded(function(compute.real(x(*i), source)), result),
                "requantized",
            )

        return self.pointwise(body, [self.plain(self.node_of("data"))], "quantized_unary")

    def requantize(self) -> Any:
        return self.rescaled(self.plain(self.node_of("data")), self.numbers.of("data"))


def _ints(value: Any, rank: int) -> list[int]:
    return [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)] * rank


def _limited(value: Expr, low: float, high: float) -> Expr:
    if low > -np.inf:
        value = tirx.max(value, f32(low))
    return tirx.min(value, f32(high)) if high < np.inf else value


def _activation(node: Node) -> Callable[[Expr], Expr]:
    """What an activation does to an element."""
    match node.op:
        case "nn.relu":
            return lambda x: _limited(x, 0.0, np.inf)
        case "nn.relu6":
            return lambda x: _limited(x, 0.0, 6.0)
        case "clip":
            low, high = float(node.attributes["min"]), float(node.attributes["max"])
            return lambda x: _limited(x, low, high)
        case "nn.leakyrelu":
            slope = f32(float(node.attributes["alpha"]))
            return lambda x: tirx.Select(x > f32(0.0), x, x * slope)
        case "sigmoid":
            return tirx.sigmoid
        case "tanh":
            return tirx.tanh
        case "nn.silu":
            return lambda x: x * tirx.sigmoid(x)
    raise _NoForm


def quantize(builder: relax.BlockBuilder, call: Any, _cpu: Cpu) -> Expr | None:
    """QuantizeLinear on its own, rounded as ONNX says; None for other than 8 bits."""
    if str(call.attrs.out_dtype) not in table.SMALL:
        return None
    axis, dtype = int(call.attrs.axis), str(call.attrs.out_dtype)
    # Numbers of the whole tensor are written into the code.
    arrays = [constant_of(a) for a in call.args[1:3]]
    arguments = [
        tirx.const(a.reshape(-1)[0].item(), str(a.dtype)) if a is not None and a.size == 1 else e
        for a, e in zip(arrays, call.args[1:3], strict=True)
    ]

    def body(x: te.Tensor, scale: Any, zero: Any) -> Any:
        def of(parameter: Any, i: Any) -> Any:
            if not isinstance(parameter, te.Tensor):
                return parameter
            if all(int(e) == 1 for e in parameter.shape):
                return parameter(*([0] * len(parameter.shape)))
            return parameter(i[axis])

        return compute.elementwise(
            x.shape,
            lambda *i: compute.quantized(x(*i), of(scale, i), of(zero, i), dtype),
            "quantized",
        )

    return builder.call_te(body, call.args[0], *arguments, primfunc_name_hint="quantize")
