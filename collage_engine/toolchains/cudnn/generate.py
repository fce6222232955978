"""Generates the program of the cuDNN runtime from a function of the dataflow graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members, node_set
from collage_engine.partition.quantized import SMALL
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.format import NHWC
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.cudnn import attention, quantized
from collage_engine.toolchains.cudnn.program import CudnnProgram, View, dense
from collage_engine.toolchains.cudnn.spatial import (
    SPACE,
    deconvolution_end,
    in_order,
    over_space,
    with_row,
    with_row_post,
)
from collage_engine.toolchains.runtime import attention as written_out
from collage_engine.toolchains.runtime.per_axis import pads, per_axis, row_major
from collage_engine.toolchains.runtime.places import Constants, blank

CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
DECONVOLUTIONS = tuple(f"{op}_transpose" for op in CONVOLUTIONS)
POOLS = tuple(f"nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3))
"""Relax operators that cuDNN computes by its convolution, backward-data and pooling functions."""
UNARY = {
    "nn.relu": {"mode": "relu"},
    "sigmoid": {"mode": "sigmoid"},
    "tanh": {"mode": "tanh"},
    "nn.silu": {"mode": "swish"},
    "nn.gelu": {"mode": "gelu"},
    "nn.gelu_tanh": {"mode": "gelu_tanh"},
    "nn.softplus": {"mode": "softplus"},
    "exp": {"mode": "exp"},
    "sqrt": {"mode": "sqrt"},
    "rsqrt": {"mode": "rsqrt"},
    "erf": {"mode": "erf"},
    "abs": {"mode": "abs"},
    "negative": {"mode": "negative"},
}
"""The mode of cuDNN's pointwise operation for each Relax operator of one operand."""
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
COMMUTATIVE = ("add", "multiply", "maximum", "minimum")
"""Relax operators of two operands that cuDNN computes, and those whose operands may be
exchanged."""
VIEWS = ("reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten")
"""Relax operators that only change the shape of memory."""
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
        found = written_out.within(self.graph, self.nodes, self.leaving, attention.refused)
        attentions = {each.root: each for each in found}
        composites = quantized.within(self.graph, self.nodes, self.leaving)
        for one in found:
            self.done |= int(one.nodes)
        for composite in composites.values():
            self.done |= int(composite.nodes)
        for index in members(self.nodes):
            node = self.graph.nodes[index]
            if index in attentions:  # what it reads has been made
                attention.emit(self.program, attentions[index])
            if index in composites:
                quantized.emit(self.program, composites[index])
            if node.form == "projection":
                raise UnsupportedError("cuDNN gives no tuples")
            if node.form == "call" and not self.done >> index & 1:
                self._call(node)

    def _call(self, node: Node) -> None:
        self.program.check(node.type, node.op)
        if node.op in CONVOLUTIONS or node.op in DECONVOLUTIONS:
            self._convolution(node)
        elif node.op in POOLS:
            self._pool(node)
        elif node.op == "nn.adaptive_avg_pool2d" or (node.op == "mean" and over_space(node)):
            self._global_pool(node)
        elif node.op in ("nn.softmax", "nn.log_softmax"):
            self._softmax(node)
        elif node.op == "nn.layer_norm":
            self._layer_norm(node)
        elif node.op in VIEWS:
            self.program.views[node.index] = self._reshape(node)
        elif self._post(node, node.inputs[0]) is not None:
            self._pointwise(node)
        else:
            raise UnsupportedError(f"{onnx_type(node.op)}: cuDNN has no function for it here")

    # ---- convolutions ----------------------------------------------------------------------

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
        channels_last = x.strides[1] == 1 and x.dims[1] > 1
        if channels_last:
            # Stored (K, space, C), seen as (K, C, space): what channels-last engines read.
            stored = program.constant(np.moveaxis(array, 1, -1))
            w = stored.permuted((0, rank + 1, *range(1, rank + 1)))
        else:
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
        if rank == 1:  # cuDNN convolves images: a signal is one row
            x, w, y = (with_row(v) for v in (x, w, y))
            posts = [with_row_post(p) for p in posts]
            strides, dilation = (1, *strides), (1, *dilation)
            begin, end = (0, *begin), (0, *end)
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
        return {
            "mode": node.op,
            "other": other_view,
            "swapped": node.inputs[1] == source and node.op not in COMMUTATIVE,
        }

    def _pointwise(self, node: Node) -> None:
        source = node.inputs[0]
        if self.graph.nodes[source].type.shape != node.type.shape and len(node.inputs) > 1:
            source = node.inputs[1]
        if self.graph.nodes[source].type.shape != node.type.shape:
            raise UnsupportedError(f"{onnx_type(node.op)}: both operands are broadcast")
        post = self._post(node, source)
        if post is None:
            raise UnsupportedError(f"{onnx_type(node.op)}: operands that cuDNN cannot combine")
        x, y = self.program.view(source), self.program.result(node.index)
        other = post.get("other")
        if len(x.dims) < 3:  # engines want three axes or more
            x, y = x.widened(3), y.widened(3)
            if isinstance(other, View):
                post["other"] = other.widened(3)
        self.program.emit(
            "pointwise",
            node.name or f"{node.op} {node.index}",
            x=x.as_json(),
            y=y.as_json(),
            posts=[{k: v.as_json() if isinstance(v, View) else v for k, v in post.items()}],
        )

    # ---- pools -----------------------------------------------------------------------------

    def _pool(self, node: Node) -> None:
        attributes = node.attributes
        rank = len(node.type.shape) - 2
        logical = "NC" + SPACE[3 - rank :]
        layout = str(attributes["layout"])
        x = in_order(self.program.view(node.inputs[0]), layout, logical, node.op)
        window, strides, dilation = (
            per_axis(attributes[k], rank) for k in ("pool_size", "strides", "dilation")
        )
        begin, end = pads(attributes["padding"], rank)
        if set(dilation) != {1}:
            raise UnsupportedError(f"{onnx_type(node.op)}: windows with gaps")
        y = in_order(self.program.result(node.index), layout, logical, node.op)
        average = ".avg" in node.op
        include = bool(attributes.get("count_include_pad"))
        floor = tuple(
            (x.dims[2 + d] + 2 * begin[d] - window[d]) // strides[d] + 1 for d in range(rank)
        )
        if y.dims[2:] != floor or (begin != end and average):
            raise UnsupportedError(f"{onnx_type(node.op)}: padding that differs at both ends")
        mode = "max" if not average else "avg_include" if include else "avg"
        if rank == 1:
            x, y = with_row(x), with_row(y)
            window, strides, begin = (1, *window), (1, *strides), (0, *begin)
        self.program.emit(
            "pool",
            node.name or f"{node.op} {node.index}",
            x=x.as_json(),
            y=y.as_json(),
            mode=mode,
            window=list(window),
            pad=list(begin),
            stride=list(strides),
        )

    def _global_pool(self, node: Node) -> None:
        """Emits the mean over all axes of space."""
        x = self.program.view(node.inputs[0])
        if node.op != "mean":
            layout = str(node.attributes.get("layout", "NCHW"))
            if layout != "NCHW" or tuple(node.type.shape[2:]) != (1, 1):
                raise UnsupportedError(
                    f"{onnx_type(node.op)}: only the mean over all of an NCHW image"
                )
        y = self.program.result(node.index)
        rank = len(x.dims) - 2
        shape = (*x.dims[:2], *(1,) * rank)
        y = View(y.place, shape, row_major(shape), y.dtype)
        window = x.dims[2:]
        if rank == 1:
            x, y, window = with_row(x), with_row(y), (1, *window)
        self.program.emit(
            "pool",
            node.name or f"{node.op} {node.index}",
            x=x.as_json(),
            y=y.as_json(),
            mode="avg",
            window=list(window),
            pad=[0] * len(window),
            stride=list(window),
        )

    # ---- rows ------------------------------------------------------------------------------

    def _softmax(self, node: Node) -> None:
        x, y = self.program.view(node.inputs[0]), self.program.result(node.index)
        rank = len(x.dims)
        axis = int(node.attributes.get("axis", -1)) % rank
        outer, inner = int(np.prod(x.dims[:axis])), int(np.prod(x.dims[axis + 1 :]))
        shape = (outer, x.dims[axis], inner, 1)
        self.program.emit(
            "softmax",
            node.name or f"{node.op} {node.index}",
            x=x.reshaped(shape).as_json(),
            y=y.reshaped(shape).as_json(),
            log=node.op == "nn.log_softmax",
        )

    def _layer_norm(self, node: Node) -> None:
        x, y = self.program.view(node.inputs[0]), self.program.result(node.index)
        rank = len(x.dims)
        axes = sorted(int(a) % rank for a in node.attributes["axes"])
        if axes != list(range(rank - len(axes), rank)):
            raise UnsupportedError("LayerNormalization: cuDNN normalises over the last axes only")
        extent = int(np.prod([x.dims[a] for a in axes]))
        rows = int(np.prod(x.dims)) // extent
        shape, parameters = (rows, extent, 1, 1), (1, extent, 1, 1)
        scale, bias = (self.program.view(i).reshaped(parameters) for i in node.inputs[1:3])
        self.program.emit(
            "layer_norm",
            node.name or f"layer_norm {node.index}",
            x=x.reshaped(shape).as_json(),
            y=y.reshaped(shape).as_json(),
            scale=scale.as_json(),
            bias=bias.as_json(),
            epsilon=float(node.attributes["epsilon"]),
        )

    def _reshape(self, node: Node) -> View:
        if self.leaving >> node.index & 1:
            raise UnsupportedError(
                f"{onnx_type(node.op)}: a result that is only another view of an operand"
            )
        return self.program.view(node.inputs[0]).reshaped(tuple(node.type.shape))


def plan_of(
    graph: DataflowGraph,
    nodes: NodeSet,
    inputs: tuple[NodeIndex, ...],
    outputs: tuple[NodeIndex, ...],
    constants: Constants,
    *,
    formats: dict[int, str] | None = None,
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
        formats: The formats of inputs and outputs that are not plain.
        strict: Whether float32 is computed in float32, and not rounded to tf32 inside.
        dry: Whether only the shape of the program counts; constants then have no values.

    Raises:
        UnsupportedError: cuDNN cannot compute it, for the reason in the message.
    """
    formats = formats or {}
    program = CudnnProgram(graph, constants, NHWC in formats.values(), strict, dry)
    for place, index in enumerate((*inputs, *outputs)):
        kind = graph.nodes[index].type
        if kind.dtype not in SMALL:  # what is read of it says whether 8 bits can be
            program.check(kind, graph.nodes[index].op or "an input")
        about = {"where": "argument", "at": place}
        view = dense(about, kind, formats.get(index) == NHWC)
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
