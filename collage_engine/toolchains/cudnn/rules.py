"""Says what cuDNN takes, convolutions with what follows them, and makes programs of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members, node_set
from collage_engine.partition.patterns import Pattern, anything, constant, op
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.cudnn.program import CudnnProgram, Ints, View, dense
from collage_engine.toolchains.runtime.per_axis import pads, per_axis
from collage_engine.toolchains.runtime.places import Constants, blank

SPACE = "DHW"
"""Names of the axes of space in layouts; operators of fewer dimensions use the last ones."""


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
"""Pointwise operations that may follow a convolution in one graph; chosen, because engines fuse
few."""


class Generator:
    """Lowers the operators of one function in their order."""

    def __init__(self, program: CudnnProgram, nodes: NodeSet, leaving: NodeSet) -> None:
        self.program = program
        self.graph = program.graph
        self.nodes = nodes
        self.leaving = leaving
        self.done = 0

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

    def _call(self, node: Node) -> None:
        self.program.check(node.type, node.op)
        if node.op not in CONVOLUTIONS and node.op not in DECONVOLUTIONS:
            raise UnsupportedError(
                f"{onnx_type(node.op)}: cuDNN runs it only behind a convolution, if at all"
            )
        self._convolution(node)

    def _convolution(self, node: Node) -> None:
        program, attributes = self.program, node.attributes
        rank = len(node.type.shape) - 2
        logical = "NC" + SPACE[3 - rank :]
        layout = str(attributes.get("data_layout", logical))
        transposed = node.op in DECONVOLUTIONS
        groups = int(attributes.get("groups", 1))
        x = in_order(program.view(node.inputs[0]), layout, logical, node.op)
        weights_node = self.graph.nodes[node.inputs[1]]
        if weights_node.form != "constant":
            raise UnsupportedError(f"{onnx_type(node.op)}: weights that are computed")
        array = program.constants(node.inputs[1])
        wanted = ("IO" if transposed else "OI") + SPACE[3 - rank :]
        kernel_layout = str(attributes["kernel_layout"])
        if sorted(kernel_layout) != sorted(wanted):
            raise UnsupportedError(
                f"{onnx_type(node.op)}: cuDNN has no kernel layout {kernel_layout}"
            )
        array = array.transpose([kernel_layout.index(c) for c in wanted])
        w = program.constant(array)
        strides, dilation = (per_axis(attributes[k], rank) for k in ("strides", "dilation"))
        begin, end = pads(attributes["padding"], rank)
        if transposed:
            if groups != 1 and array.shape[0] % groups:
                raise UnsupportedError(
                    f"{onnx_type(node.op)}: groups that do not divide the channels"
                )
            end = deconvolution_end(node, x, array.shape[2:], strides, dilation, begin, layout)
        last, posts = self._posts(node)
        y = in_order(program.result(last.index), layout, logical, node.op)
        program.emit(
            "deconv" if transposed else "conv",
            node.name or f"{node.op} {node.index}",
            x=x.as_json(),
            w=w.as_json(),
            y=y.as_json(),
            pre=list(begin),
            post=list(end),
            stride=list(strides),
            dilation=list(dilation),
            groups=groups,
            posts=[
                {k: v.as_json() if isinstance(v, View) else v for k, v in p.items()} for p in posts
            ],
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
        known = other in self.program.views or self.graph.nodes[other].form == "constant"
        if not known:
            return None
        view = self.program.view(other)
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
    program = CudnnProgram(graph, constants, strict, dry)
    for place, index in enumerate((*inputs, *outputs)):
        kind = graph.nodes[index].type
        program.check(kind, graph.nodes[index].op or "an input")
        about = {"where": "argument", "at": place}
        view = dense(about, kind)
        (program.views if place < len(inputs) else program.outputs)[index] = view
    Generator(program, nodes & ~node_set(inputs), node_set(outputs)).lower()
    return program.as_json(), bytes(program.weights)


def dry_plan(graph: DataflowGraph, nodes: NodeSet) -> None:
    """Checks that cuDNN can compute some operators, from the shapes of their weights only.

    Raises:
        UnsupportedError: It cannot, for the reason in the message.
    """
    closed = graph.close(nodes)
    inputs, outputs = graph.boundary(closed)

    plan_of(graph, closed, inputs, outputs, blank(graph), dry=True)


def refused(graph: DataflowGraph, nodes: NodeSet) -> str | None:
    """Return why these calls are no partition for it; None when they are."""
    calls = node_set(i for i in graph.operators if nodes >> i & 1)
    try:
        dry_plan(graph, calls)
    except UnsupportedError as error:
        return str(error)
    return None


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
