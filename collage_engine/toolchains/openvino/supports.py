"""What OpenVINO can run, operator by operator."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph

TYPES = {
    "float32", "float16", "bfloat16", "bool", "int8", "uint8", "int16", "uint16", "int32", "int64",
}  # fmt: skip
"""Element types that the CPU plugin computes in, or converts without loss of what models use:
float16 is computed in float32, int64 in int32."""


@cache
def has_bfloat16() -> bool:
    """Whether the processor multiplies in bfloat16; without, the hint only costs time."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def reason_against(graph: DataflowGraph, index: int) -> str | None:
    """None when OpenVINO can be expected to take the call."""
    from collage_engine.model.onnx_forms import FORMS

    node = graph.nodes[index]
    if node.op not in FORMS and not node.onnx_nodes:
        return f"{node.op} has no ONNX form"
    for value in (*node.types, *(t for i in node.inputs for t in graph.nodes[i].types)):
        if value.dtype not in TYPES:
            return f"OpenVINO's CPU plugin computes no {value.dtype}"
    return None
