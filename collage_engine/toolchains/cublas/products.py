"""Turns a function of the dataflow graph into a plan of cuBLASLt products with epilogues."""

from __future__ import annotations

from typing import Any

from collage_engine.machine.cuda import generation
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.places import Constants, Places
from collage_engine.toolchains.runtime.products import (
    Dialect,
    Product,
    layout_of,
    layout_of_product,
    products,
)

COMPUTE = {
    "float32": "float32",
    "float64": "float64",
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
    "float8_e4m3fn": "float32",
    "float8_e5m2": "float32",
}
"""The type in which cuBLASLt accumulates, by the operands' element type."""
ROUNDED = {"tf32": "tf32", "float16": "fast float16", "bfloat16": "fast bfloat16"}
"""cuBLASLt's name of the rounding of float32 operands inside a product, by the run's precision."""
EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")
RESULTS = {
    "int8": ("int32",),
    **dict.fromkeys(EIGHT_BITS, ("float32", "float16", "bfloat16")),
}
"""Element types of a product's result, by that of its operands, where it has another one."""
MULTIPLES = {"int8": 4, **dict.fromkeys(EIGHT_BITS, 16)}
"""Numbers of elements of which a product's sizes must be multiples, by element type: rows of 8-bit
elements are read in words, or in 16 bytes. Both operands are then read along k: the right one lies
by columns."""
LEAST_FOR_EIGHT = 89
"""Architecture (Ada) from which on cuBLASLt multiplies floats of 8 bits (cuBLAS's documentation of
cublasLtMatmul)."""


def check_product(graph: DataflowGraph, node: Node) -> None:
    """Checks that cuBLASLt has a product.

    Raises:
        UnsupportedError: It has none; the text says why.
    """
    left, right = (graph.nodes[i] for i in node.inputs)
    kind, other = left.type.dtype, right.type.dtype
    mixed = {kind, other} == set(EIGHT_BITS)
    if kind not in COMPUTE or (other != kind and not mixed) or {kind, other} == {EIGHT_BITS[1]}:
        raise UnsupportedError(f"MatMul: cuBLAS multiplies no {kind} by {other}")
    if node.type.dtype not in RESULTS.get(kind, (kind,)):
        raise UnsupportedError(f"MatMul: cuBLAS gives no {node.type.dtype} from {kind}")
    layout = layout_of(left.type.shape, right.type.shape, node.type.shape)
    multiple = MULTIPLES.get(kind, 1)
    if layout.k % multiple or layout.n % multiple:
        raise UnsupportedError(
            f"MatMul: {kind} products need rows of a multiple of {multiple} elements"
        )


def reason_against_architecture(graph: DataflowGraph, node: Node, architecture: str) -> str | None:
    """Return why a device has no such product."""
    for index in node.inputs:
        kind = graph.nodes[index].type.dtype
        if kind in EIGHT_BITS and generation(architecture) < LEAST_FOR_EIGHT:
            return f"MatMul: {architecture} multiplies no {kind}"
    return None


DIALECT = Dialect(
    name="cuBLAS",
    check=check_product,
    activations={"nn.relu": "relu", "nn.gelu_tanh": "gelu"},
    # GELU by tanh is closer to that by erf than half precision can tell.
    half_activations={"nn.gelu": "gelu"},
    chains=(("gelu", chains.gelu_tanh),),
    half_chains=(("gelu", chains.gelu_erf),),
)


def plan_of(
    graph: DataflowGraph,
    nodes: NodeSet,
    inputs: tuple[NodeIndex, ...],
    outputs: tuple[NodeIndex, ...],
    constants: Constants,
    precision: str,
) -> tuple[dict[str, Any], bytes]:
    """Returns the plan and the weights of a function.

    Args:
        graph: The model's dataflow graph.
        nodes: The function's closed set of nodes.
        inputs: Node indices of the inputs, in argument order.
        outputs: Node indices of the outputs, in argument order.
        constants: Gives the value of a constant node.
        precision: The precision of the instance.

    Raises:
        UnsupportedError: An operator fits in no product; the text names it.
    """
    leaving = node_set(outputs)
    inside = nodes & ~node_set(inputs)
    places = Places(graph, inputs, outputs, constants)
    steps = []
    for product in products(graph, inside, leaving, DIALECT):
        places.check_scalars(product.scalars, product.epilogue)
        kind = graph.nodes[product.left].type.dtype
        result = graph.nodes[product.anchor]
        layout = layout_of_product(graph, product)
        b, by_columns = _right(places, product, kind, layout.batch)
        if kind in EIGHT_BITS and product.bias is not None and result.type.dtype == "float32":
            raise UnsupportedError("MatMul: a float32 bias of floats of 8 bits")
        step: dict[str, Any] = {
            "name": result.name or f"matmul {result.index}",
            "m": layout.m,
            "n": layout.n,
            "k": layout.k,
            "batch": layout.batch,
            "dtype": kind,
            "dtype_b": graph.nodes[product.right].type.dtype,
            "out_dtype": result.type.dtype,
            "compute": ROUNDED.get(precision, kind) if kind == "float32" else COMPUTE[kind],
            "transpose_a": product.transpose_left,
            "transpose_b": by_columns,
            "a": places.read(product.left),
            "b": b,
            "d": places.write(product.result),
            "epilogue": product.epilogue,
            **{f"stride_{name}": stride for name, stride in layout.strides.items()},
        }
        if product.bias is not None:
            step["bias"] = places.read(product.bias)
        if product.residual is not None:
            step["c"] = places.read(product.residual)
        steps.append(step)
    return {"steps": steps, "scratch_bytes": places.scratch}, bytes(places.weights)


def _right(places: Places, product: Product, kind: str, batch: int) -> tuple[dict[str, Any], bool]:
    """Return the right operand, and whether its rows are the product's columns."""
    if kind not in MULTIPLES or product.transpose_right:
        if kind in MULTIPLES and product.transpose_left:
            raise UnsupportedError(f"MatMul: {kind} products read the left matrix by rows")
        return places.read(product.right), product.transpose_right
    constant = places.graph.nodes[product.right].form == "constant"
    if product.transpose_left or not constant or batch > 1:
        raise UnsupportedError(f"MatMul: {kind} products read the right matrix by columns")
    array = places.constants(product.right)
    matrix = array.reshape(array.shape[-2:]) if array.ndim > 1 else array.reshape(-1, 1)
    return places.constant(matrix.T), True
