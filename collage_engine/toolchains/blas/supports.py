"""Says which operators a BLAS can compute: products, convolutions, and what can follow them."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.blas import product
from collage_engine.toolchains.blas.convolution import shape_of
from collage_engine.toolchains.blas.elementwise import ELEMENTWISE
from collage_engine.toolchains.blas.generate import CONVOLUTIONS, RESHAPES

ANCHORS = CONVOLUTIONS | {"matmul"}
VIEWS = RESHAPES | {"permute_dims"}
REASONS = {
    "nn.conv3d": "columns are gathered from signals and images only",
    **dict.fromkeys(
        (f"nn.conv{rank}d_transpose" for rank in (1, 2, 3)),
        "a transposed convolution scatters columns, which the runtime does not",
    ),
}

_known: WeakKeyDictionary[DataflowGraph, dict[NodeIndex, str | None]] = WeakKeyDictionary()


def reason_against(graph: DataflowGraph, index: NodeIndex) -> str | None:
    """Returns why a BLAS cannot compute a call, by itself or with a product; None where it can."""
    known = _known.get(graph)
    if known is None:
        known = _known.setdefault(graph, _judge(graph))
    return known[index]


def holds_anchor(graph: DataflowGraph, nodes: NodeSet) -> bool:
    """Tell whether a set of nodes multiplies anything."""
    return any(graph.nodes[i].op in ANCHORS for i in members(nodes))


def _judge(graph: DataflowGraph) -> dict[NodeIndex, str | None]:
    nodes = graph.nodes
    found = {index: _alone(graph, index) for index in graph.operators}
    # Functions of a product's result in its shape, and transposes of it, can follow it.
    after = {i for i in graph.operators if nodes[i].op in ANCHORS and found[i] is None}
    for index in graph.operators:
        node = nodes[index]
        if found[index] is not None or node.op in ANCHORS:
            continue
        same_shape = node.op in ELEMENTWISE
        if any(
            s in after and (not same_shape or nodes[s].type.shape == node.type.shape)
            for s in node.inputs
        ):
            after.add(index)
    # Transposes and reshapes can precede a product, which reads through them.
    before: set[int] = set()
    for index in reversed(graph.operators):
        if nodes[index].op in VIEWS and found[index] is None:
            readers = graph.users[index]
            if any(u in before or (nodes[u].op == "matmul" and u in after) for u in readers):
                before.add(index)
    for index in graph.operators:
        if found[index] is None and index not in after and index not in before:
            kind = onnx_type(nodes[index].op)
            found[index] = f"{kind}: only together with a matrix product or a convolution"
    return found


def _alone(graph: DataflowGraph, index: NodeIndex) -> str | None:
    """Returns why a BLAS cannot compute a call, whatever its neighbours are."""
    node = graph.nodes[index]
    if node.op in REASONS:
        return f"{onnx_type(node.op)}: {REASONS[node.op]}"
    if node.op not in ANCHORS | VIEWS | ELEMENTWISE:
        return f"a BLAS computes no {onnx_type(node.op)}"
    if node.is_tuple or not node.types:
        return f"{onnx_type(node.op)}: a BLAS gives no tuples"
    sources = [graph.nodes[i] for i in node.inputs]
    # Transposes and reshapes move one tensor; what else they read are shapes.
    for each in (node, *(sources[:1] if node.op in VIEWS else sources)):
        if each.is_tuple or each.type.dtype != "float32":
            return f"{onnx_type(node.op)}: a BLAS computes float32, not {each.type.dtype}"
    try:
        if node.op in CONVOLUTIONS:
            shape_of(node, *sources)
        elif node.op == "matmul":
            product.check(node, sources)
        elif node.op == "power":
            exponent = sources[1]
            if exponent.form != "constant" or exponent.type.elements != 1:
                return "Pow: only a constant exponent"
        elif 0 in node.type.shape:
            return f"{onnx_type(node.op)}: empty tensors"
    except UnsupportedError as error:
        return str(error)
    return None
