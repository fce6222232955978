"""Says what OpenVINO can run, operator by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.machine.device import processor
from collage_engine.records.numbering import NodeIndex
from collage_engine.toolchains.runtime.supported import against_onnx

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph

TYPES = {
    "float32",
    "float16",
    "bfloat16",
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "int64",
}
"""Element types that the CPU plugin computes in, or converts without loss of what models use:
float16 is computed in float32, int64 in int32."""


def has_bfloat16() -> bool:
    """Tell whether the processor multiplies in bfloat16; without, the hint only costs time."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor().flags)


def reason_against(graph: DataflowGraph, index: NodeIndex) -> str | None:
    """Returns None when OpenVINO can be expected to take the call, else why not."""
    return against_onnx(
        graph,
        index,
        TYPES,
        "OpenVINO's CPU plugin computes no",
        "it returns no values whose size depends on the data",
    )
