"""Describes products and convolutions with what follows them, for libraries with fused epilogues.

An *anchor* is a matmul or a convolution. It takes along a bias, one residual sum and an activation,
in this order; what a library can take is its ``Dialect``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import NO_NODES, members, node_set, one_node
from collage_engine.partition.greedy import closed
from collage_engine.partition.patterns import Pattern, all_matches, anything
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.runtime.chains import VALUES

HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Dialect:
    """The description of what products one library runs, and of how it calls them."""

    name: str
    """The library's name in messages."""
    check: Callable[[DataflowGraph, Node], None]
    """A function that raises ``UnsupportedError`` with the reason against an anchor."""
    activations: Mapping[str, str]
    """The library's name of the epilogue for each activation operator."""
    half_activations: Mapping[str, str] = field(default_factory=dict)
    """The library's names of further epilogues for activations in half precision."""
    chains: tuple[tuple[str, Callable[[Pattern], Pattern]], ...] = ()
    """Pairs of an epilogue and a function that makes the pattern of the chain of operators by which
    it is written out."""
    half_chains: tuple[tuple[str, Callable[[Pattern], Pattern]], ...] = ()
    channel_axes: Mapping[str, Callable[[Node], int]] = field(
        default_factory=lambda: {"matmul": lambda node: len(node.type.shape) - 1}
    )
    """Functions that return the axis of the result along which a bias lies, by the operator of the
    anchor."""

    def activation(self, op: str, dtype: str) -> str | None:
        """Return the epilogue that applies an operator; None: the library has none."""
        found = self.activations.get(op)
        return self.half_activations.get(op) if found is None and dtype in HALF else found


_NOT_SET = NodeIndex(-1)
"""No node: a product's result until it is known."""


@dataclass
class Product:
    """An anchor, the transposes a matmul reads through, and what follows it."""

    anchor: int
    left: int
    right: int
    axis: int
    """The axis of the result along which the bias lies."""
    transpose_left: bool = False
    transpose_right: bool = False
    bias: int | None = None
    residual: int | None = None
    epilogue: str = "none"
    result: NodeIndex = _NOT_SET
    """The node whose value the product writes."""
    nodes: NodeSet = NO_NODES
    scalars: dict[int, float] = field(default_factory=dict)
    """The values that the constants of a written-out activation must have, by the constant's
    node."""


@dataclass
class Layout:
    """A layout says how the operands of a matmul lie: sizes, and elements between matrices."""

    m: int
    n: int
    k: int
    batch: int
    strides: dict[str, int] = field(default_factory=dict)


def products(
    graph: DataflowGraph, nodes: NodeSet, outputs: NodeSet, dialect: Dialect
) -> list[Product]:
    """Returns the products that hold every operator of a set.

    Args:
        graph: The model's dataflow graph.
        nodes: The set of nodes.
        outputs: Nodes whose values leave the set, so that no product may swallow them.
        dialect: What the library's products can do.

    Raises:
        UnsupportedError: An operator fits in none; the text names it.
    """
    found = []
    used = NO_NODES
    for index in members(nodes):
        node = graph.nodes[index]
        if node.form != "call" or node.op not in dialect.channel_axes:
            continue
        product = _product(graph, node, nodes, outputs, dialect)
        found.append(product)
        used |= product.nodes
    for index in members(nodes):
        node = graph.nodes[index]
        if node.form == "call" and not used >> index & 1:
            raise UnsupportedError(in_an_epilogue_only(node.op, dialect))
        if node.form not in ("call", "constant"):
            raise UnsupportedError(f"{dialect.name} gives no tuples")
    return found


def in_an_epilogue_only(op: str, dialect: Dialect) -> str:
    """Return the reason against an operator that is no product and follows none."""
    return f"{onnx_type(op)}: it belongs to no product or epilogue that {dialect.name} takes"


def layout_of(left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...]) -> Layout:
    """Returns the sizes of ``left · right``.

    Raises:
        UnsupportedError: One strided batch cannot hold the product.
    """
    if 0 in (*left, *right, *result):
        raise UnsupportedError("MatMul: empty matrices")
    a = (1, *left) if len(left) == 1 else left
    b = (*right, 1) if len(right) == 1 else right
    m, k, n = a[-2], a[-1], b[-1]
    many_a, many_b = int(np.prod(a[:-2])), int(np.prod(b[:-2]))
    if many_b == 1:
        # There is one right-hand matrix: all rows of the left ones are rows of one matrix.
        return Layout(m * many_a, n, k, 1)
    rank = max(len(a), len(b)) - 2
    lead_a = (1,) * (rank - len(a) + 2) + tuple(a[:-2])
    lead_b = (1,) * (rank - len(b) + 2) + tuple(b[:-2])
    if many_a == 1 or lead_a == lead_b:
        strides = {"a": 0 if many_a == 1 else m * k, "b": k * n, "d": m * n, "c": m * n}
        return Layout(m, n, k, many_b, strides)
    raise UnsupportedError("MatMul: a batch that is broadcast along some of its axes only")


def layout_of_product(graph: DataflowGraph, product: Product) -> Layout:
    """Return the sizes of a matmul that reads through the product's transposes."""
    left, right = (graph.nodes[i].type.shape for i in (product.left, product.right))
    return layout_of(
        _swapped(left) if product.transpose_left else left,
        _swapped(right) if product.transpose_right else right,
        graph.nodes[product.anchor].type.shape,
    )


def _swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _product(
    graph: DataflowGraph, node: Node, nodes: NodeSet, outputs: NodeSet, dialect: Dialect
) -> Product:
    dialect.check(graph, node)
    left, right = node.inputs
    product = Product(
        node.index,
        left,
        right,
        dialect.channel_axes[node.op](node),
        nodes=one_node(node.index),
        result=node.index,
    )
    if node.op == "matmul":
        _read_through_transposes(graph, product, node, nodes, outputs)
    _epilogue(graph, product, nodes, outputs, dialect)
    return product


def _read_through_transposes(
    graph: DataflowGraph, product: Product, node: Node, nodes: NodeSet, outputs: NodeSet
) -> None:
    for side in ("left", "right"):
        index = getattr(product, side)
        source = graph.nodes[index]
        if nodes >> index & 1 and source.form == "call":
            if not (_swaps_matrices(graph, source) and _read_by(graph, index, node, outputs)):
                continue  # another product's result
            setattr(product, side, source.inputs[0])
            setattr(product, f"transpose_{side}", True)
            product.nodes |= one_node(index)
    if product.transpose_left and _one_matrix(graph, product.right):
        shape = graph.nodes[product.left].type.shape
        if int(np.prod(shape[:-2])) != 1:
            raise UnsupportedError("MatMul: a batch of transposed matrices by one matrix")


def _one_matrix(graph: DataflowGraph, index: int) -> bool:
    return int(np.prod(graph.nodes[index].type.shape[:-2])) == 1


def _swaps_matrices(graph: DataflowGraph, node: Node) -> bool:
    """Tell whether it is a permute_dims of the last two axes."""
    if node.op != "permute_dims":
        return False
    rank = len(node.type.shape)
    axes = node.attributes.get("axes")
    order = [int(a) % rank for a in axes] if axes else list(reversed(range(rank)))
    return rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]


def _read_by(graph: DataflowGraph, index: NodeIndex, reader: Node, outputs: NodeSet) -> bool:
    return not outputs >> index & 1 and set(graph.users[index]) == {reader.index}


def _epilogue(
    graph: DataflowGraph, product: Product, nodes: NodeSet, outputs: NodeSet, dialect: Dialect
) -> None:
    """Take bias, residual and activation along, as far as the set goes."""
    while True:
        index = product.result
        users = set(graph.users[index])
        inside = {u for u in users if nodes >> u & 1}
        if outputs >> index & 1 or not inside or inside != users:
            return
        chain = _chain(graph, index, nodes, users, dialect)
        if chain is not None and product.epilogue == "none":
            product.epilogue, product.result, taken, product.scalars = chain
            product.nodes |= taken
            continue
        if len(users) != 1:
            return
        node = graph.nodes[users.pop()]
        activation = dialect.activation(node.op, node.type.dtype)
        if activation is not None and product.epilogue == "none":
            product.epilogue = activation
        elif node.op == "add" and product.epilogue == "none":
            other = next((i for i in node.inputs if i != index), None)
            if other is None:
                return
            if graph.nodes[other].form == "call" and nodes >> other & 1 and other > product.anchor:
                return  # made later than this product
            if not _joins(graph, product, node, other):
                return
        else:
            return
        product.result = node.index
        product.nodes |= one_node(node.index)


def _joins(graph: DataflowGraph, product: Product, node: Node, other: int) -> bool:
    """Tell whether an addend is a bias, or a tensor like the result, and there is room for it."""
    shape, result = tuple(graph.nodes[other].type.shape), tuple(node.type.shape)
    if tuple(graph.nodes[product.anchor].type.shape) != result:
        return False
    along = [1] * len(result)
    along[product.axis] = result[product.axis]
    if (1,) * (len(result) - len(shape)) + shape == tuple(along) and along[product.axis] > 1:
        if product.bias is None and product.residual is None:
            product.bias = other
            return True
        return False
    if shape == result and product.residual is None:
        product.residual = other
        return True
    return False


def _chain(
    graph: DataflowGraph,
    source: NodeIndex,
    nodes: NodeSet,
    users: set[NodeIndex],
    dialect: Dialect,
) -> tuple[str, NodeIndex, NodeSet, dict[int, float]] | None:
    """Return a written-out activation of a value inside the set.

    Returns:
        (epilogue, its last node, its calls, its scalars); None where there is none.
    """
    half = graph.nodes[source].type.dtype in HALF
    x = anything("x")
    for epilogue, make in (*dialect.chains, *(dialect.half_chains if half else ())):
        pattern = make(x)
        for root in members(nodes):
            if graph.nodes[root].op not in (pattern.root_ops or ()):
                continue
            for match in all_matches(graph, pattern, root):
                if match.bindings.get("x") != source:
                    continue
                calls = node_set(i for i in members(match.nodes) if graph.nodes[i].form == "call")
                held = calls & ~nodes == 0 and all(calls >> u & 1 for u in users)
                if held and closed(graph, match):
                    bound = match.bindings.items()
                    return (
                        epilogue,
                        root,
                        calls,
                        {i: VALUES[name] for name, i in bound if name != "x"},
                    )
    return None
