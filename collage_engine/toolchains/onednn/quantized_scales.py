"""Describes the scales of 8-bit values in a program, and lowers quantize and dequantize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.quantized import SMALL
from collage_engine.partition.quantized_numbers import Scaling, scaling
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.onednn.shaping import SHAPING
from collage_engine.toolchains.onednn.steps import OneDnnProgram

Lower = Callable[[OneDnnProgram, Node], int]
"""A function that lowers a node and returns its value."""


def entry(
    plan: OneDnnProgram, of: str, scale: np.ndarray | float, zero: int = 0, mask: int = 0
) -> dict[str, Any]:
    """Returns the scale and zero point of a step's operand or result, as values of the program.

    Args:
        plan: The program.
        of: The name of the operand or result.
        scale: One scale, or one for each element of an axis.
        zero: The zero point.
        mask: oneDNN's mask of the axes that have a scale for each element.
    """
    made: dict[str, Any] = {"of": of, "mask": mask}
    values = np.asarray(scale, np.float32).reshape(-1)
    if not (values == 1.0).all():
        made["scale"] = plan.constant(values)
    if zero:
        made["zero"] = plan.constant(np.array([zero], np.int32), "int32")
    return made


def single(plan: OneDnnProgram, of: str, given: Scaling) -> dict[str, Any]:
    """Returns the entry of a value that has one scale and one zero point."""
    scale, zero = given.single(of)
    return entry(plan, of, scale, zero)


def rescale(plan: OneDnnProgram, value: int, source: Scaling | None, result: Scaling | None) -> int:
    """Converts a value from one scale to another; returns the converted value.

    Args:
        plan: The program.
        value: The value.
        source: The scale of the value; None where it is float32.
        result: The scale of the result; None where it is float32.

    Raises:
        UnsupportedError: There is a zero point for each element of an axis.
    """
    if source is not None and result is not None and source.equals(result):
        return value
    entries = []
    for name, given in (("src", source), ("dst", result)):
        if given is None:
            continue
        if given.axis is None:
            entries.append(single(plan, name, given))
        elif given.zero.any():
            raise UnsupportedError("a zero point for each element of an axis")
        else:
            entries.append(entry(plan, name, given.scale, 0, 1 << given.axis))
    dtype = "float32" if result is None else result.dtype
    return plan.emit("rescale", plan.dims[value], dtype=dtype, src=value, scaling=entries)


def quantize(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a quantisation from float32."""
    if plan.constants_of is None:
        return plan.new_value(node.type.shape, node.type.dtype)
    result = scaling(plan.graph, node.index, plan.constants_of)
    return rescale(plan, plan.tensor(node.inputs[0]), None, result)


def dequantize(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a dequantisation; constants are dequantised when the program is generated."""
    if plan.constants_of is None:
        return plan.new_value(node.type.shape)
    source = scaling(plan.graph, node.index, plan.constants_of)
    if plan.is_constant(node.inputs[0]):
        values = np.asarray(plan.constants_of(node.inputs[0]))
        scale, zero = source.spread(values.shape)
        real = (values.astype(np.int64) - zero) * scale.astype(np.float64)
        return plan.constant(real.astype(np.float32).reshape(node.type.shape or (1,)))
    return rescale(plan, plan.tensor(node.inputs[0]), source, None)


def refusal(graph: DataflowGraph, node: Node) -> str | None:
    """Return why a quantize or dequantize cannot be taken on its own."""
    for index in node.inputs[1:3]:
        if graph.nodes[index].form != "constant":
            return f"{onnx_type(node.op)}: oneDNN needs a constant scale and zero point"
    small = node.type if node.op == "quantize" else graph.nodes[node.inputs[0]].type
    real = graph.nodes[node.inputs[0]].type if node.op == "quantize" else node.type
    constant = graph.nodes[node.inputs[0]].form == "constant"
    allowed = (*SMALL, "int32") if constant else SMALL
    if small.dtype not in allowed or real.dtype != "float32":
        return f"{onnx_type(node.op)}: the oneDNN runtime has no {small.dtype} for {real.dtype}"
    return None


QUANTIZED: dict[str, Lower] = {"quantize": quantize, "dequantize": dequantize}
"""The function that lowers each of these operators."""

ON_INTEGERS = {
    *SHAPING,
    *(f"nn.max_pool{d}d" for d in (1, 2, 3)),
    *QUANTIZED,
} - {"broadcast_to", "nn.dropout"}
"""Operators that can also be computed on 8-bit values."""
