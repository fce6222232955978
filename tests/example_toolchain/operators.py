"""Turns a function into a plan for the example's C++ runtime, where that computes all of it.

A plan is a list of steps. Each reads values and writes one; a value is an argument of the call, a
weight at an offset, or scratch memory at an offset (``runtime.places``). One table decides what
``supports`` answers and what a plan holds, so that the two cannot disagree.
"""

from __future__ import annotations

from math import prod
from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import Node, OperatorNumber, TensorType, members
from collage_engine.records.operators import onnx_type
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.places import Places

UNARY = ("nn.relu", "abs", "negative", "exp", "tanh", "sigmoid", "sqrt")
"""Operators that the runtime applies to every element of one tensor."""
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
"""Operators that the runtime applies to the elements of two tensors, by numpy's broadcasting."""
PRODUCT = "matmul"
"""The one product that the runtime computes: rows times a matrix."""


def reason_against(graph: DataflowGraph, index: OperatorNumber) -> str | None:
    """Returns None when the runtime computes the call; else the reason, as users read it."""
    node = graph.nodes[index]
    if node.op not in (*UNARY, *BINARY, PRODUCT):
        return f"the example computes no {onnx_type(node.op)}"
    for kind in (*node.types, *(graph.values[i].type for i in node.inputs)):
        if kind.dtype != "float32":
            return f"the example computes in float32, not in {kind.dtype}"
    if node.op == PRODUCT:
        left, right = (graph.values[i].type.shape for i in node.inputs)
        if not left or len(right) != 2:
            return "the example multiplies rows by a matrix, not by several"
    return None


def plan_of(function: Function) -> tuple[dict[str, Any], bytes]:
    """Return the plan (JSON values) and the weights of a function.

    Raises:
        UnsupportedError: The runtime cannot compute one of its calls.
    """
    graph = function.graph
    places = Places(graph, function.inputs, function.outputs, function.constant)
    steps = []
    for index in members(function.nodes):
        node = graph.nodes[index]
        reason = reason_against(graph, index)
        if reason is not None:
            raise UnsupportedError(reason)
        reads = [places.read(i) for i in node.inputs]
        step = _sizes(node, [graph.values[i].type for i in node.inputs])
        steps.append({"what": node.op, "reads": reads, "writes": places.write(index)} | step)
    return {"steps": steps, "scratch": places.scratch}, bytes(places.weights)


def _sizes(node: Node, operands: list[TensorType]) -> dict[str, Any]:
    """Returns the sizes that a step's loops run over."""
    shape = tuple(node.type.shape)
    if node.op == PRODUCT:
        depth, columns = operands[1].shape
        return {"rows": prod(operands[0].shape[:-1]), "depth": depth, "columns": columns}
    return {
        "shape": list(shape),
        "strides": [_strides(tuple(operand.shape), shape) for operand in operands],
    }


def _strides(shape: tuple[int, ...], result: tuple[int, ...]) -> list[int]:
    """Returns how far apart an operand's elements lie along each axis of the result.

    A stride counts elements; it is 0 along an axis over which the operand is repeated.
    """
    whole = (1,) * (len(result) - len(shape)) + shape
    return [0 if extent == 1 else prod(whole[axis + 1 :]) for axis, extent in enumerate(whole)]
