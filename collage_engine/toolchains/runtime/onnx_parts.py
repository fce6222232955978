"""Holds what the toolchains share that are given sub-graphs as ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.records.errors import ToolchainError

if TYPE_CHECKING:
    from onnx import ModelProto

WRITERS = (
    "collage_engine.model.onnx_writer",
    "collage_engine.model.onnx_slice",
    "collage_engine.model.onnx_builder",
    "collage_engine.model.onnx_forms",
    "collage_engine.model.onnx_forms_nn",
    "collage_engine.model.onnx_forms_reduce",
)
"""Modules that write a sub-graph as ONNX: costs of these toolchains depend on their sources."""
LARGEST_MODEL = 2**31 - 1
"""Bytes that one protobuf message may have."""


def check_size(model: ModelProto) -> None:
    """Checks that a model, without its files, fits one protobuf message.

    Raises:
        ToolchainError: It is too large.
    """
    size = model.ByteSize()
    if size > LARGEST_MODEL:
        raise ToolchainError(f"the sub-graph is {size / 1e9:.1f} GB as ONNX; 2 GB is the limit")
