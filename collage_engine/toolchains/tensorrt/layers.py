"""What TensorRT executes of an engine: the layers that its inspector tells, for the faces."""

from __future__ import annotations

import json
from typing import Any

from collage_engine.records.errors import ToolchainError
from collage_engine.toolchains.tensorrt.engine import logger
from collage_engine.toolchains.tensorrt.library import api


def executed_layers(plan: bytes) -> list[dict[str, Any]]:
    """Layers in execution order with their kernels; empty where the engine does not open here."""
    try:
        found = api()
    except ToolchainError:
        return []
    trt = found.trt
    engine = trt.Runtime(logger(found)).deserialize_cuda_engine(plan)
    if engine is None:
        return []
    text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    try:
        layers = json.loads(text).get("Layers", [])
    except ValueError:
        return []
    return [_step(layer) for layer in layers]


def _step(layer: Any) -> dict[str, Any]:
    if not isinstance(layer, dict):  # engines built without details tell names only
        return {"what": "layer", "name": str(layer)}
    return {
        "what": str(layer.get("LayerType", "layer")),
        "name": str(layer.get("Name", "")),
        "kernel": str(layer.get("TacticName", "")),
        "from": str(layer.get("Metadata", "")),
    }
