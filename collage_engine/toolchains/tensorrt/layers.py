"""Reads the layers that TensorRT executes of an engine, as its inspector reports them."""

from __future__ import annotations

import json
from typing import Any

from collage_engine.records.errors import ToolchainError
from collage_engine.toolchains.tensorrt.engine import logger
from collage_engine.toolchains.tensorrt.library import api


def executed_layers(plan: bytes) -> list[dict[str, Any]]:
    """Returns the layers in execution order with their kernels.

    The list is empty where the engine cannot be opened.
    """
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
