"""Says what cuBLASLt takes, products with epilogues, and makes plans of it."""

from __future__ import annotations

from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set
from collage_engine.partition.patterns import Pattern, anything, op
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.precision import FLOAT32
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.places import Constants, Places
from collage_engine.toolchains.runtime.products import (
    Dialect,
    layout_of,
    layout_of_product,
    products,
)

COMPUTE = {
    "float32": "float32",
    "float64": "float64",
    "float16": "float32",
    "bfloat16": "float32",
}
"""The type in which cuBLASLt accumulates, by the operands' element type."""
ROUNDED = {"tf32": "tf32", "float16": "fast float16", "bfloat16": "fast bfloat16"}
"""cuBLASLt's name of the rounding of float32 operands inside a product, by the run's precision."""


def check_product(graph: DataflowGraph, node: Node) -> None:
    """Checks that cuBLASLt has a product.

    Raises:
        UnsupportedError: It has none; the text says why.
    """
    left, right = (graph.nodes[i].type for i in node.inputs)
    if left.dtype not in COMPUTE or right.dtype != left.dtype:
        raise UnsupportedError(f"MatMul: cuBLAS multiplies no {left.dtype} by {right.dtype}")
    if node.type.dtype != left.dtype:
        raise UnsupportedError(f"MatMul: cuBLAS gives no {node.type.dtype} from {left.dtype}")
    layout_of(left.shape, right.shape, node.type.shape)


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
    precision: str = FLOAT32,
    *,
    dry: bool = False,
) -> tuple[dict[str, Any], bytes]:
    """Returns the plan and the weights of a function.

    Args:
        graph: The model's dataflow graph.
        nodes: The function's closed set of nodes.
        inputs: Node indices of the inputs, in argument order.
        outputs: Node indices of the outputs, in argument order.
        constants: Gives the value of a constant node.
        precision: The precision of the instance.
        dry: Whether only the shape of the plan counts; constants then have no values.

    Raises:
        UnsupportedError: An operator fits in no product; the text names it.
    """
    leaving = node_set(outputs)
    inside = nodes & ~node_set(inputs)
    places = Places(graph, inputs, outputs, constants, dry)
    steps = []
    for product in products(graph, inside, leaving, DIALECT):
        places.check_scalars(product.scalars, product.epilogue)
        kind = graph.nodes[product.left].type.dtype
        result = graph.nodes[product.anchor]
        layout = layout_of_product(graph, product)
        step: dict[str, Any] = {
            "name": result.name or f"matmul {result.index}",
            "m": layout.m,
            "n": layout.n,
            "k": layout.k,
            "batch": layout.batch,
            "dtype": kind,
            "compute": ROUNDED.get(precision, kind) if kind == "float32" else COMPUTE[kind],
            "transpose_a": product.transpose_left,
            "transpose_b": product.transpose_right,
            "a": places.read(product.left),
            "b": places.read(product.right),
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


def _operand(name: str) -> Pattern:
    return op("permute_dims", anything(name), commutative=False) | anything(name)


def patterns() -> list[tuple[str, Pattern]]:
    """Return a product, with its operands transposed or not; bias, residual sum, activation."""
    product = op("matmul", _operand("left"), _operand("right"), commutative=False)
    added = product.optional(lambda x: op("add", x, anything("bias")))
    summed = added.optional(lambda x: op("add", x, anything("residual")))
    active = summed.optional(
        lambda x: (
            op(("nn.relu", "nn.gelu", "nn.gelu_tanh"), x, commutative=False)
            | chains.gelu_tanh(x)
            | chains.gelu_erf(x)
        )
    )
    return [("cublas.matmul", active)]
