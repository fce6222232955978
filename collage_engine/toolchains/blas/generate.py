"""Generates the program of the BLAS runtime from a function of the dataflow graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members, node_set, one_node
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.format import NHWC, TO_LOGICAL, TO_STORED, Formats, stored_shape
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.blas import convolution, written_out
from collage_engine.toolchains.blas.elementwise import ELEMENTWISE, choices
from collage_engine.toolchains.blas.product import product
from collage_engine.toolchains.blas.program import (
    BlasProgram,
    Ints,
    Made,
    Post,
    Step,
    View,
)
from collage_engine.toolchains.runtime.per_axis import row_major

CONVOLUTIONS = frozenset({"nn.conv1d", "nn.conv2d"})
"""Relax operators that are computed as products of gathered columns or rows."""
RESHAPES = frozenset({"reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten"})
"""Relax operators that only change the shape of contiguous memory."""


class Generator:
    """Lowers the operators of one function in their order."""

    def __init__(
        self,
        graph: DataflowGraph,
        nodes: NodeSet,
        inputs: tuple[NodeIndex, ...],
        outputs: tuple[NodeIndex, ...],
        constants: Callable[[int], np.ndarray],
        takes: Formats,
        gives: Formats,
    ) -> None:
        self.graph = graph
        self.nodes = nodes
        self.program = BlasProgram(constants)
        self.views: dict[int, View] = {}
        self.made: dict[int, Made] = {}
        self.gives_stored = bool(gives)
        self.leaving = node_set(outputs)
        for position, index in enumerate(inputs):
            node = graph.nodes[index]
            self._check_type(node)
            self.views[index] = self.program.input(position, node.type.shape)
            if index in takes:
                shape = stored_shape(node.type.shape, takes[index])
                view = self.program.input(position, shape)
                self.views[index] = view.permuted(TO_LOGICAL[takes[index]])
        self._lower(nodes & ~node_set(inputs))
        leaving = []
        for index in outputs:
            view = self.view(index)
            leaving.append(view.permuted(TO_STORED[gives[index]]) if index in gives else view)
        self.program.finish(leaving)

    # What lowering asks for

    def view(self, index: int) -> View:
        """Returns the view of a node's value; a constant is added to the weights first.

        Raises:
            UnsupportedError: The value has not been computed, or it is no float32 tensor.
        """
        found = self.views.get(index)
        if found is None:
            node = self.graph.nodes[index]
            if node.form != "constant":
                raise UnsupportedError(f"{onnx_type(node.op)} is read before it is made")
            self._check_type(node)
            found = self.views[index] = self.program.constant(self.program.value(index))
        return found

    def scalar(self, index: int) -> float | None:
        """Returns the value of a constant with one element; None for any other node."""
        node = self.graph.nodes[index]
        if node.form != "constant" or node.type.elements != 1:
            return None
        return float(np.asarray(self.program.value(index)).reshape(()))

    def _check_type(self, node: Node) -> None:
        if node.is_tuple:
            raise UnsupportedError("a tuple is no tensor")
        if node.type.dtype != "float32":
            raise UnsupportedError(
                f"{onnx_type(node.op)}: a BLAS computes float32, not {node.type.dtype}"
            )

    def _read_only_by(self, index: NodeIndex, readers: NodeSet) -> bool:
        """Returns whether only these calls read a value."""
        users = self.graph.users[index]
        return not self.leaving >> index & 1 and all(readers >> u & 1 for u in users)

    # Operators

    def _lower(self, nodes: NodeSet) -> None:
        chains = {
            root: found
            for root, found in written_out.FOUND.within(self.graph, nodes).items()
            if not found.nodes & self.leaving & ~one_node(root)
        }
        posts: dict[int, Post] = {}
        part_of: dict[NodeIndex, NodeIndex] = {}
        for root, found in chains.items():
            post = written_out.post_of(found, self.scalar)
            if post is not None:
                posts[root] = post
                part_of.update(dict.fromkeys(members(found.nodes), root))
        for index in members(nodes):
            node = self.graph.nodes[index]
            if node.form == "projection":
                raise UnsupportedError("a BLAS gives no tuples")
            if node.form != "call":
                continue
            if index not in part_of:
                self._call(node)
            elif part_of[index] == index:
                found = chains[index]
                self._elementwise(node, [(found.match.bindings["x"], [posts[index]])], found.nodes)

    def _call(self, node: Node) -> None:
        self._check_type(node)
        if node.op == "matmul":
            view, step = product(self.program, *(self.view(i) for i in node.inputs))
            if view.dims == node.type.shape:
                self._keep(node, view, step)
            else:  # a vector took part
                self.views[node.index] = view.reshaped(node.type.shape)
                step.name = self._name(node)
        elif node.op in CONVOLUTIONS:
            self._convolution(node)
        elif node.op == "permute_dims":
            self._permute(node)
        elif node.op in RESHAPES:
            source = self.program.dense(self.view(node.inputs[0]))
            self.views[node.index] = source.reshaped(node.type.shape)
        elif node.op in ELEMENTWISE:
            self._elementwise(node, choices(self, node), one_node(node.index))
        else:
            raise UnsupportedError(f"a BLAS computes no {onnx_type(node.op)}")

    def _convolution(self, node: Node) -> None:
        data, weights = (self.graph.nodes[i] for i in node.inputs)
        shape = convolution.shape_of(node, data, weights)
        view = self.view(data.index)
        # Axes N, C, H, W that lie in memory as N, H, W, C are computed so.
        stored = (
            not shape.channels_last
            and len(view.dims) == 4
            and weights.form == "constant"
            and (self.gives_stored or _channels_last(view))
        )
        if stored:
            shape = replace(shape, channels_last=True)
        if weights.form == "constant":
            filters = convolution.filters_of(self.program, node, weights.index, shape)
        else:
            filters = self.program.dense(self.view(weights.index))
        dims = node.type.shape
        if stored:
            view, dims = view.permuted(TO_STORED[NHWC]), stored_shape(dims, NHWC)
        made = convolution.convolution(self.program, dims, shape, view, filters)
        self._keep(node, *made, TO_LOGICAL[NHWC] if stored else None)

    def _keep(self, node: Node, view: View, step: Step, order: Ints | None = None) -> None:
        """Records the step that computes a value.

        Args:
            node: The node whose value it is.
            view: The step's result.
            step: The step.
            order: The step's axis for each axis of the value; by default the same order.
        """
        order = order or tuple(range(len(view.dims)))
        self.views[node.index] = view.permuted(order)
        self.made[node.index] = Made(step, order)
        step.name = self._name(node)

    def _name(self, node: Node) -> str:
        return node.name or f"{node.op} (node {node.index})"

    def _permute(self, node: Node) -> None:
        """Lowers a transpose as another view, or as the order in which a product writes."""
        (source,) = node.inputs
        view = self.view(source)
        axes = node.attributes.get("axes")
        rank = len(view.dims)
        order = tuple(int(a) % rank for a in axes) if axes else tuple(reversed(range(rank)))
        made = self.made.get(source)
        if (
            made is not None
            and made.step.op == "product"
            and made.order[order[-1]] == rank - 1
            and self._read_only_by(source, one_node(node.index))
        ):
            dims = tuple(view.dims[a] for a in order)
            axis_of = tuple(made.order[a] for a in order)
            strides = [0] * rank
            for axis, stride in zip(axis_of, row_major(dims), strict=True):
                strides[axis] = stride
            made.step.strides = tuple(strides)
            self.views[node.index] = View(made.step.out, 0, dims, row_major(dims))
            self.made[node.index] = Made(made.step, axis_of)
            return
        self.views[node.index] = view.permuted(order)

    def _elementwise(
        self, node: Node, options: Sequence[tuple[NodeIndex, list[Post]]], readers: NodeSet
    ) -> None:
        """Lowers an elementwise operator as a post-op of the latest step that computes one operand.

        Nothing else may read that operand; otherwise an operand is copied, and the copy gets the
        post-op.
        """
        self._check_type(node)
        best: tuple[int, NodeIndex, list[Post]] | None = None
        for source, posts in options:
            made = self.made.get(source)
            if (
                made is not None
                and self.views[source].dims == node.type.shape
                and self._read_only_by(source, readers)
                and made.step.takes(posts, made.order)
                and (best is None or made.step.position > best[0])
            ):
                best = (made.step.position, source, posts)
        if best is not None:
            _, source, posts = best
            made = self.made[source]
            made.step.add(posts, made.order)
            self.views[node.index], self.made[node.index] = self.views[source], made
            return
        source, posts = options[0]
        view = self.view(source)
        dims = node.type.shape
        repeated = View(view.buffer, view.offset, dims, view.broadcast(dims))
        order = None
        if _channels_last(repeated):
            repeated, order = repeated.permuted(TO_STORED[NHWC]), TO_LOGICAL[NHWC]
        made_view, step = self.program.copy(repeated)
        self._keep(node, made_view, step, order)
        step.add(posts, self.made[node.index].order)


def _channels_last(view: View) -> bool:
    """Returns whether a view is dense in the order N, H, W, C, and not also in N, C, H, W."""
    return len(view.dims) == 4 and not view.contiguous and view.permuted(TO_STORED[NHWC]).contiguous


def generate(
    graph: DataflowGraph,
    nodes: NodeSet,
    inputs: tuple[NodeIndex, ...],
    outputs: tuple[NodeIndex, ...],
    constants: Callable[[int], np.ndarray],
    takes: Formats | None = None,
    gives: Formats | None = None,
) -> BlasProgram:
    """Generates the program of a function.

    Args:
        graph: The model's dataflow graph.
        nodes: The function's closed set of nodes.
        inputs: Node indices of the inputs, in argument order.
        outputs: Node indices of the outputs, in argument order.
        constants: Gives the value of a constant node.
        takes: Formats of inputs that are not plain, by node index.
        gives: Formats of outputs that are not plain, by node index.

    Raises:
        UnsupportedError: The runtime cannot take an operator; the text names it.
    """
    return Generator(graph, nodes, inputs, outputs, constants, takes or {}, gives or {}).program
