"""From a function of the dataflow graph to a plan of products with epilogues for cuBLASLt."""

from __future__ import annotations

from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import IndexSet
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.toolchains.native import chains
from collage_engine.toolchains.native.places import Constants, Places
from collage_engine.toolchains.native.products import (
    Dialect,
    layout_of,
    layout_of_product,
    products,
)

COMPUTE = {
    "float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32",
    "int8": "int32",
}  # fmt: skip
"""Element type → what it is accumulated in."""
RESULTS = {"int8": "int32"}
"""Element type of the result where it differs from the operands'."""
INTEGER_MULTIPLE = 4
"""int8 products need rows of whole words."""


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


DIALECT = Dialect(
    name="cuBLAS",
    check=check_product,
    activations={"nn.relu": "relu", "nn.gelu_tanh": "gelu"},
    # By tanh: closer to erf's than half precision can tell.
    half_activations={"nn.gelu": "gelu"},
    chains=(("gelu", chains.gelu_tanh),),
    half_chains=(("gelu", chains.gelu_erf),),
)


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
    places = Places(graph, inputs, outputs, constants)
    steps = []
    for product in products(graph, inside, leaving, DIALECT):
        places.check_scalars(product.scalars, product.epilogue)
        kind = graph.nodes[product.left].type.dtype
        result = graph.nodes[product.anchor]
        layout = layout_of_product(graph, product)
        step: dict[str, Any] = {
            "name": result.name or f"matmul {result.index}",
            "m": layout.m, "n": layout.n, "k": layout.k, "batch": layout.batch,
            "dtype": kind, "out_dtype": result.type.dtype,
            "compute": "tf32" if (kind, precision) == ("float32", "tf32") else COMPUTE[kind],
            "transpose_a": product.transpose_left, "transpose_b": product.transpose_right,
            "a": places.read(product.left), "b": places.read(product.right),
            "d": places.write(product.result), "epilogue": product.epilogue,
            **{f"stride_{name}": stride for name, stride in layout.strides.items()},
        }  # fmt: skip
        if product.bias is not None:
            step["bias"] = places.read(product.bias)
        if product.residual is not None:
            step["c"] = places.read(product.residual)
        steps.append(step)
    return {"steps": steps, "scratch_bytes": places.scratch}, bytes(places.weights)
