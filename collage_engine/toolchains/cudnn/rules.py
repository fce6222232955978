"""Says what cuDNN takes, convolutions with what follows them, and makes programs of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members, node_set
from collage_engine.partition.patterns import Pattern, anything, constant, op
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node, TensorType
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.runtime.per_axis import Ints, pads, per_axis, row_major
from collage_engine.toolchains.runtime.places import Constants, Places

SPACE = "DHW"
"""Names of the axes of space in layouts; operators of fewer dimensions use the last ones."""
TYPES = ("float32", "float16", "bfloat16")
"""Element types in which cuDNN computes."""


@dataclass(frozen=True)
class View:
    """A tensor in memory, whose strides count elements."""

    place: dict[str, Any]
    dims: Ints
    strides: Ints
    dtype: str

    def permuted(self, axes: Ints) -> View:
        """Returns the same memory with its axes in another order."""
        return View(
            self.place,
            tuple(self.dims[a] for a in axes),
            tuple(self.strides[a] for a in axes),
            self.dtype,
        )

    def widened(self, rank: int) -> View:
        """Returns the tensor with axes of one element in front, so that it has ``rank`` axes."""
        more = rank - len(self.dims)
        front = self.strides[0] * self.dims[0] if self.dims else 1
        return View(self.place, (1,) * more + self.dims, (front,) * more + self.strides, self.dtype)

    def as_json(self) -> dict[str, Any]:
        """Returns the tensor as JSON values for the runtime."""
        return {
            **self.place,
            "dims": list(self.dims),
            "strides": list(self.strides),
            "dtype": self.dtype,
        }


def dense(place: dict[str, Any], kind: TensorType) -> View:
    """Returns memory that holds a value in row-major order."""
    return View(place, tuple(kind.shape), row_major(kind.shape), kind.dtype)


def check(kind: TensorType, what: str) -> None:
    """Checks that cuDNN can compute with a type.

    Raises:
        UnsupportedError: It cannot, or the tensor is empty; ``what`` is named in the message.
    """
    if kind.dtype not in TYPES:
        raise UnsupportedError(f"{what}: cuDNN computes no {kind.dtype}")
    if 0 in kind.shape:
        raise UnsupportedError(f"{what}: an empty tensor")


def in_order(view: View, layout: str, logical: str, op: str) -> View:
    """Returns a view with its axes in the order batch, channels, space.

    Raises:
        UnsupportedError: The operator's layout is not one of these axes.
    """
    if sorted(layout) != sorted(logical):
        raise UnsupportedError(f"{onnx_type(op)}: cuDNN has no layout {layout}")
    return view.permuted(tuple(layout.index(c) for c in logical))


def deconvolution_end(
    node: Node, x: View, kernel: Ints, strides: Ints, dilation: Ints, begin: Ints, layout: str
) -> Ints:
    """Returns the padding behind each axis with which the result has its size.

    Output padding reduces it.
    """
    rank = len(kernel)
    logical = "NC" + SPACE[3 - rank :]
    sizes = [node.type.shape[layout.index(c)] for c in logical[2:]]
    return tuple(
        (x.dims[2 + d] - 1) * strides[d] + (kernel[d] - 1) * dilation[d] + 1 - begin[d] - sizes[d]
        for d in range(rank)
    )


CONVOLUTIONS = ("nn.conv2d", "nn.conv3d")
DECONVOLUTIONS = tuple(f"{op}_transpose" for op in CONVOLUTIONS)
"""Relax operators that cuDNN computes by its convolution and backward-data functions."""
UNARY = {
    "nn.relu": {"mode": "relu"},
    "sigmoid": {"mode": "sigmoid"},
    "tanh": {"mode": "tanh"},
    "nn.silu": {"mode": "swish"},
    "nn.gelu": {"mode": "gelu"},
    "nn.gelu_tanh": {"mode": "gelu_tanh"},
}
"""The mode of cuDNN's pointwise operation for each Relax operator of one operand."""
BINARY = ("add", "multiply")
"""Relax operators of two operands that cuDNN computes behind a convolution."""
FUSED = 4
"""Pointwise operations that may follow a convolution in one graph: those of ``patterns``."""


class Generator:
    """Lowers the operators of one function in their order."""

    def __init__(
        self,
        places: Places,
        inputs: tuple[NodeIndex, ...],
        nodes: NodeSet,
        leaving: NodeSet,
        strict: bool,
    ) -> None:
        self.places = places
        self.graph = places.graph
        self.nodes = nodes
        self.leaving = leaving
        self.strict = strict
        self.done = 0
        self.steps: list[dict[str, Any]] = []
        self.made: dict[int, View] = {
            index: dense(places.read(index), self.graph.nodes[index].type) for index in inputs
        }
        """Tensors of the values that are given, made or constant."""

    def lower(self) -> None:
        """Emits the steps of all operators.

        Raises:
            UnsupportedError: cuDNN cannot compute one of them, for the reason in the message.
        """
        for index in members(self.nodes):
            node = self.graph.nodes[index]
            if node.form == "projection":
                raise UnsupportedError("cuDNN gives no tuples")
            if node.form == "call" and not self.done >> index & 1:
                self._call(node)

    def view(self, index: int) -> View:
        """Returns the tensor of a node's value; a constant is added to the weights first.

        Raises:
            UnsupportedError: The value has not been computed, or cuDNN cannot compute with its
                type.
        """
        if index not in self.made:
            node = self.graph.nodes[index]
            if node.form != "constant":
                raise UnsupportedError(f"{onnx_type(node.op)} is read before it is made")
            check(node.type, "a constant")
            self.made[index] = dense(self.places.read(index), node.type)
        return self.made[index]

    def _call(self, node: Node) -> None:
        check(node.type, node.op)
        if node.op not in CONVOLUTIONS and node.op not in DECONVOLUTIONS:
            raise UnsupportedError(
                f"{onnx_type(node.op)}: cuDNN runs it only behind a convolution, if at all"
            )
        self._convolution(node)

    def _convolution(self, node: Node) -> None:
        attributes = node.attributes
        rank = len(node.type.shape) - 2
        logical = "NC" + SPACE[3 - rank :]
        layout = str(attributes.get("data_layout", logical))
        transposed = node.op in DECONVOLUTIONS
        x = in_order(self.view(node.inputs[0]), layout, logical, node.op)
        weights_node = self.graph.nodes[node.inputs[1]]
        if weights_node.form != "constant":
            raise UnsupportedError(f"{onnx_type(node.op)}: weights that are computed")
        array = self.places.constants(node.inputs[1])
        wanted = ("IO" if transposed else "OI") + SPACE[3 - rank :]
        kernel_layout = str(attributes["kernel_layout"])
        if sorted(kernel_layout) != sorted(wanted):
            raise UnsupportedError(
                f"{onnx_type(node.op)}: cuDNN has no kernel layout {kernel_layout}"
            )
        array = array.transpose([kernel_layout.index(c) for c in wanted])
        place = self.places.constant(array)
        w = View(place, array.shape, row_major(array.shape), str(array.dtype))
        strides, dilation = (per_axis(attributes[k], rank) for k in ("strides", "dilation"))
        begin, end = pads(attributes["padding"], rank)
        if transposed:
            end = deconvolution_end(node, x, array.shape[2:], strides, dilation, begin, layout)
        last, posts = self._posts(node)
        result = dense(self.places.write(last.index), last.type)
        self.made[last.index] = result
        # Only what is float32 can lose by being rounded inside; engines that read half precision or
        # less use tensor cores in any case.
        exact = self.strict and x.dtype == "float32"
        self.steps.append(
            {
                "op": "deconv" if transposed else "conv",
                "name": node.name or f"{node.op} {node.index}",
                "math": "float32" if exact else "any",
                "x": x.as_json(),
                "w": w.as_json(),
                "y": in_order(result, layout, logical, node.op).as_json(),
                "pre": list(begin),
                "post": list(end),
                "stride": list(strides),
                "dilation": list(dilation),
                "posts": [
                    {k: v.as_json() if isinstance(v, View) else v for k, v in p.items()}
                    for p in posts
                ],
            }
        )

    def _posts(self, node: Node) -> tuple[Node, list[dict[str, Any]]]:
        """Returns the last node that joins an anchor as a post-op, and all of its post-ops."""
        posts: list[dict[str, Any]] = []
        while len(posts) < FUSED and not self.leaving >> node.index & 1:
            users = set(self.graph.users[node.index])
            if len(users) != 1:
                break
            user = self.graph.nodes[next(iter(users))]
            if not self.nodes >> user.index & 1 or user.type.shape != node.type.shape:
                break
            post = self._post(user, node.index)
            if post is None:
                break
            posts.append(post)
            self.done |= 1 << user.index
            node = user
        return node, posts

    def _post(self, node: Node, source: int) -> dict[str, Any] | None:
        """Return a pointwise operation on one operand.

        None when it is none, or needs what is not made.
        """
        if node.op in UNARY and node.inputs == (source,):
            return dict(UNARY[node.op])
        if node.op == "clip":
            low, high = float(node.attributes["min"]), float(node.attributes["max"])
            if not np.isfinite([low, high]).all():
                return None
            return {"mode": "clip", "low": low, "high": high}
        if node.op == "nn.leakyrelu":
            return {"mode": "relu", "slope": float(node.attributes["alpha"])}
        if node.op not in BINARY or node.inputs[0] == node.inputs[1]:
            return None
        other = node.inputs[1] if node.inputs[0] == source else node.inputs[0]
        known = other in self.made or self.graph.nodes[other].form == "constant"
        if not known:
            return None
        view = self.view(other)
        other_view = view.widened(len(node.type.shape))
        sizes = zip(other_view.dims, node.type.shape, strict=True)
        if any(d not in (1, full) for d, full in sizes):
            return None
        return {"mode": node.op, "other": other_view}


def plan_of(
    graph: DataflowGraph,
    nodes: NodeSet,
    inputs: tuple[NodeIndex, ...],
    outputs: tuple[NodeIndex, ...],
    constants: Constants,
    *,
    strict: bool = True,
    dry: bool = False,
) -> tuple[dict[str, Any], bytes]:
    """Returns the program and the weights of a function.

    Args:
        graph: The dataflow graph.
        nodes: The function's nodes.
        inputs: The nodes that it takes, in the order of its arguments.
        outputs: The nodes that it gives, in the order of its arguments.
        constants: Gives the values of constant nodes.
        strict: Whether float32 is computed in float32, and not rounded to tf32 inside.
        dry: Whether only the shape of the program counts; constants then have no values.

    Raises:
        UnsupportedError: cuDNN cannot compute it, for the reason in the message.
    """
    for index in (*inputs, *outputs):
        check(graph.nodes[index].type, graph.nodes[index].op or "an input")
    places = Places(graph, inputs, outputs, constants, dry)
    nodes &= ~node_set(inputs)
    generator = Generator(places, inputs, nodes, node_set(outputs), strict)
    generator.lower()
    plan = {"steps": generator.steps, "scratch_bytes": places.scratch}
    return plan, bytes(places.weights)


def patterns() -> list[tuple[str, Pattern]]:
    """Returns the patterns of a convolution with bias, residual sum or gate, and activation."""
    anchor = op(
        (*CONVOLUTIONS, *DECONVOLUTIONS), anything("x"), constant("weights"), commutative=False
    )
    biased = anchor.optional(lambda x: op("add", x, constant("bias")))
    summed = biased.optional(lambda x: op("add", x, anything("residual")))
    active = summed.optional(lambda x: op((*UNARY, "clip", "nn.leakyrelu"), x, commutative=False))
    gated = active.optional(lambda x: op(("multiply", "add"), x, anything("gate")))
    return [("cudnn.conv", gated)]
