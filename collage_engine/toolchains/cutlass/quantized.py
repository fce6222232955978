"""Computes 8-bit composites (QDQ) as integer products and convolutions of CUTLASS."""

from __future__ import annotations

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition import quantized
from collage_engine.partition.quantized import Kind, Quantized
from collage_engine.partition.quantized_numbers import Numbers
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.cutlass.dialect import check_convolution, groups
from collage_engine.toolchains.cutlass.families import SMALL, Family
from collage_engine.toolchains.cutlass.steps import (
    Convolved,
    Generator,
    convolved,
    filters_of,
    row_alignment,
)
from collage_engine.toolchains.runtime.requantized import LARGEST_FLOAT, Requantized, requantized

KINDS: tuple[Kind, ...] = ("conv", "matmul")


def within(graph: DataflowGraph, nodes: NodeSet, leaving: NodeSet) -> list[Quantized]:
    """Returns the composites in a set for whose types there are kernels."""
    return [
        found
        for found in quantized.within(graph, nodes, leaving).values()
        if reason_against(graph, found) is None
    ]


def reason_against(graph: DataflowGraph, found: Quantized) -> str | None:
    """Returns why there are no kernels for a composite, as far as the graph tells.

    The result is None where there are.
    """
    node = graph.nodes[found["anchor"]]
    if found.kind not in KINDS or "weights" not in found:
        return f"{onnx_type(node.op)}: CUTLASS multiplies 8-bit values by constant weights only"
    result = graph.nodes[found.root].type
    if result.dtype not in (*SMALL, "float32"):
        return f"{onnx_type(node.op)}: 8-bit products with results of {result.dtype}"
    if "residual" in found:
        residual = graph.nodes[found["residual"]].type
        if residual.dtype != result.dtype or residual.shape != result.shape:
            what = f"a {residual.dtype} tensor added to a result of {result.dtype}"
            return f"{onnx_type(node.op)}: {what}"
    if found.kind == "conv":
        if node.op != "nn.conv2d" or groups(node) != 1:
            return f"{onnx_type(node.op)}: 8-bit convolutions of images, without groups, only"
        try:
            check_convolution(graph, node)
        except UnsupportedError as error:
            return str(error)
    return None


def emit(g: Generator, found: Quantized) -> None:
    """Appends the step of a composite.

    Scales and zero points are read now; in a dry run, without them, the step has the same shape.
    """
    node = g.graph.nodes[found["anchor"]]
    numbers = Numbers(g.graph, found, g.places.constants)
    data = g.graph.nodes[found["data"]].type
    out = g.graph.nodes[found.root].type.dtype
    if found.kind == "conv":
        weights = g.graph.nodes[found["weights"]].type.shape
        order = str(node.attributes["kernel_layout"])
        kernel = tuple(weights[order.index(axis)] for axis in "HW")
        sizes = convolved(node, data.shape, kernel)
        made = _numbers(g, numbers, weights, sizes.filters, padded=_reaches_out(sizes))
        op = "gemm" if sizes.pointwise else "conv"
        family = _family(op, node, data.dtype, out, sizes.channels, sizes.filters)
        g.convolve(node, found["data"], sizes, family, filters_of(node, made.weights))
        read = g.reader(node)
    else:
        k, n = data.shape[-1], node.type.shape[-1]
        if len(data.shape) < 2 or len(g.graph.nodes[found["weights"]].type.shape) != 2:
            raise UnsupportedError("MatMul: 8-bit matrices of more than two axes")
        made = _numbers(g, numbers, (k, n), n, padded=False)
        family = _family("gemm", node, data.dtype, out, k, n)
        sizes_of = {"m": int(np.prod(data.shape[:-1])), "n": n, "k": k, "batch": 1}
        operands = {"a": g.plain(found["data"]), "b": g.places.constant(made.weights.T)}
        g.gemm(node, family, sizes_of, operands)
        read = g.plain
    step = g.steps[-1]
    columns = np.stack([made.factor, made.offset], axis=-1)
    step.update(
        dtype=data.dtype,
        out_dtype=out,
        bias=g.places.constant(columns),
        low=made.low,
        high=made.high,
    )
    if "residual" in found:
        step["source_factor"] = made.ratio
        g.source(found["residual"], read)
    if found.kind == "conv":
        g.finish(node, found.root)
    else:
        g.steps[-1]["d"] = g.plain(found.root, write=True)


def _numbers(
    g: Generator, numbers: Numbers, weights: tuple[int, ...], channels: int, *, padded: bool
) -> Requantized:
    if not g.places.dry:
        return requantized(numbers, padded=padded)
    ones = np.ones(channels, np.float32)
    limits = (-LARGEST_FLOAT, LARGEST_FLOAT)
    return Requantized(np.zeros(weights, np.int8), ones, ones, 0.0, *limits)


def _reaches_out(sizes: Convolved) -> bool:
    """Returns whether the windows of a convolution reach beyond the image."""
    for d in (0, 1):
        reach = (sizes.result[1 + d] - 1) * sizes.stride[d]
        reach += (sizes.kernel[d] - 1) * sizes.dilation[d] + 1
        if sizes.padding[d] or reach > sizes.image[1 + d]:
            return True
    return False


def _family(op: str, node: Node, data: str, out: str, *rows: int) -> Family:
    return Family(op, data, "columns", "none", row_alignment(node, data, *rows), out)
