"""From a function of the dataflow graph to a plan of products with epilogues for cuBLASLt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import IndexSet, members
from collage_engine.partition.patterns import all_matches, anything
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.toolchains.native import chains

HALF = ("float16", "bfloat16")
COMPUTE = {
    "float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32",
    "int8": "int32",
}  # fmt: skip
"""Element type → what it is accumulated in."""
RESULTS = {"int8": "int32"}
"""Element type of the result where it differs from the operands'."""
ALIGN = 256
"""Bytes; what cuBLASLt's fastest algorithms want of addresses."""
INTEGER_MULTIPLE = 4
"""int8 products need rows of whole words."""

EPILOGUES = {"nn.relu": "relu", "nn.gelu_tanh": "gelu"}

Constants = Callable[[int], np.ndarray]


@dataclass
class Product:
    """A matmul, the transposes it reads through, and what follows it."""

    matmul: int
    left: int
    right: int
    transpose_left: bool = False
    transpose_right: bool = False
    bias: int | None = None
    residual: int | None = None
    epilogue: str = "none"
    result: int = -1
    """Node whose value it writes."""
    nodes: IndexSet = 0


@dataclass
class Layout:
    """How the operands of a product lie: sizes, and elements from one matrix to the next."""

    m: int
    n: int
    k: int
    batch: int
    strides: dict[str, int] = field(default_factory=dict)


def products(graph: DataflowGraph, nodes: IndexSet, outputs: IndexSet) -> list[Product]:
    """Every operator of a set in a product; ``UnsupportedError`` names one that fits in none.

    ``outputs``: nodes whose values leave the set, so that nothing may swallow them.
    """
    found = []
    used = 0
    for index in members(nodes):
        node = graph.nodes[index]
        if node.form != "call" or node.op != "matmul":
            continue
        product = _product(graph, node, nodes, outputs)
        found.append(product)
        used |= product.nodes
    for index in members(nodes):
        node = graph.nodes[index]
        if node.form == "call" and not used >> index & 1:
            raise UnsupportedError(f"{node.op}: cuBLAS runs it only in a product's epilogue")
        if node.form not in ("call", "constant"):
            raise UnsupportedError("cuBLAS gives no tuples")
    return found


def check_product(graph: DataflowGraph, node: Node) -> None:
    """``UnsupportedError`` with the reason when cuBLASLt has no such product."""
    left, right = (graph.nodes[i] for i in node.inputs)
    kind = left.type.dtype
    if kind not in COMPUTE or right.type.dtype != kind:
        raise UnsupportedError(f"matmul: cuBLAS multiplies no {kind} by {right.type.dtype}")
    if node.type.dtype != RESULTS.get(kind, kind):
        raise UnsupportedError(f"matmul: cuBLAS gives no {node.type.dtype} from {kind}")
    layout = layout_of(left.type.shape, right.type.shape, node.type.shape)
    if kind == "int8" and (layout.k % INTEGER_MULTIPLE or layout.n % INTEGER_MULTIPLE):
        raise UnsupportedError(
            f"matmul: int8 products need rows of a multiple of {INTEGER_MULTIPLE} elements"
        )


def layout_of(
    left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...]
) -> Layout:
    """Sizes of ``left · right``; ``UnsupportedError`` when one strided batch cannot hold it."""
    if 0 in (*left, *right, *result):
        raise UnsupportedError("matmul: empty matrices")
    a = (1, *left) if len(left) == 1 else left
    b = (*right, 1) if len(right) == 1 else right
    m, k, n = a[-2], a[-1], b[-1]
    many_a, many_b = int(np.prod(a[:-2])), int(np.prod(b[:-2]))
    if many_b == 1:
        # One right-hand matrix: all rows of the left ones are rows of one.
        return Layout(m * many_a, n, k, 1)
    rank = max(len(a), len(b)) - 2
    lead_a = (1,) * (rank - len(a) + 2) + tuple(a[:-2])
    lead_b = (1,) * (rank - len(b) + 2) + tuple(b[:-2])
    if many_a == 1 or lead_a == lead_b:
        strides = {"a": 0 if many_a == 1 else m * k, "b": k * n, "d": m * n, "c": m * n}
        return Layout(m, n, k, many_b, strides)
    raise UnsupportedError("matmul: a batch that is broadcast along some of its axes only")


def _product(
    graph: DataflowGraph, node: Node, nodes: IndexSet, outputs: IndexSet
) -> Product:
    check_product(graph, node)
    left, right = node.inputs
    product = Product(node.index, left, right, nodes=1 << node.index, result=node.index)
    for side in ("left", "right"):
        index = getattr(product, side)
        source = graph.nodes[index]
        if nodes >> index & 1 and source.form == "call":
            if not (_swaps_matrices(graph, source) and _read_by(graph, index, node, outputs)):
                continue  # another product's result
            setattr(product, side, source.inputs[0])
            setattr(product, f"transpose_{side}", True)
            product.nodes |= 1 << index
    if product.transpose_left and _one_matrix(graph, product.right):
        shape = graph.nodes[product.left].type.shape
        if int(np.prod(shape[:-2])) != 1:
            raise UnsupportedError("matmul: a batch of transposed matrices by one matrix")
    _epilogue(graph, product, nodes, outputs)
    return product


def _one_matrix(graph: DataflowGraph, index: int) -> bool:
    return int(np.prod(graph.nodes[index].type.shape[:-2])) == 1


def _swaps_matrices(graph: DataflowGraph, node: Node) -> bool:
    """Whether it is a permute_dims of the last two axes."""
    if node.op != "permute_dims":
        return False
    rank = len(node.type.shape)
    axes = node.attributes.get("axes")
    order = [int(a) % rank for a in axes] if axes else list(reversed(range(rank)))
    return rank >= 2 and order == [*range(rank - 2), rank - 1, rank - 2]


def _read_by(graph: DataflowGraph, index: int, reader: Node, outputs: IndexSet) -> bool:
    return not outputs >> index & 1 and set(graph.users[index]) == {reader.index}


def _epilogue(
    graph: DataflowGraph, product: Product, nodes: IndexSet, outputs: IndexSet
) -> None:
    """Take bias, residual and activation along, as far as the set goes."""
    while True:
        index = product.result
        users = set(graph.users[index])
        inside = {u for u in users if nodes >> u & 1}
        if outputs >> index & 1 or not inside or inside != users:
            return
        gelu = _gelu(graph, index, nodes, users, outputs)
        if gelu is not None and product.epilogue == "none":
            root, taken = gelu
            product.epilogue, product.result = "gelu", root
            product.nodes |= taken
            continue
        if len(users) != 1:
            return
        node = graph.nodes[users.pop()]
        if node.op in EPILOGUES and product.epilogue == "none":
            product.epilogue = EPILOGUES[node.op]
        elif node.op == "nn.gelu" and node.type.dtype in HALF and product.epilogue == "none":
            product.epilogue = "gelu"  # by tanh: closer to erf's than half precision can tell
        elif node.op == "add" and product.epilogue == "none":
            other = next((i for i in node.inputs if i != index), None)
            if other is None:
                return
            if graph.nodes[other].form == "call" and nodes >> other & 1 and other > product.matmul:
                return  # made later than this product
            if not _joins(graph, product, node, other):
                return
        else:
            return
        product.result = node.index
        product.nodes |= 1 << node.index


def _joins(graph: DataflowGraph, product: Product, node: Node, other: int) -> bool:
    """Whether an addend is a bias, or a matrix like the result, and there is room for it."""
    shape, result = graph.nodes[other].type.shape, node.type.shape
    if graph.nodes[product.matmul].type.shape != result:
        return False
    if graph.nodes[product.matmul].type.dtype == "int32":
        return False  # cuBLASLt's integer products have no such epilogue
    columns = result[-1]
    if tuple(shape) == (1,) * (len(shape) - 1) + (columns,) and columns > 1:
        if product.bias is None and product.residual is None:
            product.bias = other
            return True
        return False
    if shape == result and product.residual is None:
        product.residual = other
        return True
    return False


def _gelu(
    graph: DataflowGraph, source: int, nodes: IndexSet, users: set[int], outputs: IndexSet
) -> tuple[int, IndexSet] | None:
    """A written-out GELU of a value inside the set: (its last node, its calls)."""
    half = graph.nodes[source].type.dtype in HALF
    makers = [chains.gelu_tanh, chains.gelu_erf] if half else [chains.gelu_tanh]
    x = anything("x")
    for make in makers:
        pattern = make(x)
        for root in members(nodes):
            if graph.nodes[root].op not in (pattern.root_ops or ()):
                continue
            for match in all_matches(graph, pattern, root):
                if match.bindings.get("x") != source:
                    continue
                calls = sum(1 << i for i in members(match.nodes) if graph.nodes[i].form == "call")
                hidden = calls & ~(1 << root)
                closed = all(
                    all(calls >> u & 1 for u in graph.users[i]) and not outputs >> i & 1
                    for i in members(hidden)
                )
                if calls & ~nodes == 0 and closed and all(calls >> u & 1 for u in users):
                    return root, calls
    return None


def plan_of(
    graph: DataflowGraph,
    nodes: IndexSet,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    constants: Constants,
    precision: str,
) -> tuple[dict[str, Any], bytes]:
    """The plan and the weights of a function."""
    leaving = sum(1 << i for i in outputs)
    inside = nodes & ~sum(1 << i for i in inputs)
    found = products(graph, inside, leaving)
    weights, scratch = bytearray(), 0
    places: dict[int, dict[str, Any]] = {
        index: {"where": "argument", "at": at} for at, index in enumerate((*inputs, *outputs))
    }

    def place(index: int) -> dict[str, Any]:
        if index not in places:
            if graph.nodes[index].form != "constant":
                raise UnsupportedError("a product reads what is not made yet")
            weights.extend(b"\0" * (-len(weights) % ALIGN))
            places[index] = {"where": "weight", "at": len(weights)}
            weights.extend(np.ascontiguousarray(constants(index)).tobytes())
        return places[index]

    steps = []
    for product in found:
        kind = graph.nodes[product.left].type.dtype
        left, right = (graph.nodes[i].type.shape for i in (product.left, product.right))
        seen_left = _swapped(left) if product.transpose_left else left
        seen_right = _swapped(right) if product.transpose_right else right
        result = graph.nodes[product.matmul]
        layout = layout_of(seen_left, seen_right, result.type.shape)
        if product.result not in places:
            places[product.result] = {"where": "scratch", "at": scratch}
            scratch += -(-graph.nodes[product.result].type.bytes // ALIGN) * ALIGN
        step: dict[str, Any] = {
            "name": result.name or f"matmul {result.index}",
            "m": layout.m, "n": layout.n, "k": layout.k, "batch": layout.batch,
            "dtype": kind, "out_dtype": result.type.dtype,
            "compute": "tf32" if (kind, precision) == ("float32", "tf32") else COMPUTE[kind],
            "transpose_a": product.transpose_left, "transpose_b": product.transpose_right,
            "a": place(product.left), "b": place(product.right), "d": places[product.result],
            "epilogue": product.epilogue,
            **{f"stride_{name}": stride for name, stride in layout.strides.items()},
        }  # fmt: skip
        if product.bias is not None:
            step["bias"] = place(product.bias)
        if product.residual is not None:
            step["c"] = place(product.residual)
        steps.append(step)
    return {"steps": steps, "scratch_bytes": scratch}, bytes(weights)


def _swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])
