"""Reads from OpenVINO's runtime model what its CPU plugin executes of a partition."""

from __future__ import annotations

from typing import Any

from collage_engine.toolchains.openvino.intermediate import read_ir
from collage_engine.toolchains.openvino.python_api import openvino

NO_WORK = ("Input", "Output", "Const")


def settings_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the properties that our runtime sets, for OpenVINO's own Python interface."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": int(plan["threads"]),
        "NUM_STREAMS": "1",
        "INFERENCE_PRECISION_HINT": str(plan["precision"]),
        "ENABLE_CPU_PINNING": bool(plan["spin"]),
    }


def executed_layers(data: bytes, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the layers that OpenVINO executes, in order.

    The model is compiled once more, by OpenVINO's Python interface, with the same settings.

    Returns:
        For each layer what it is, which kernel runs it, its precision and layout, and its
        operators.
    """
    model = read_ir(data, int(plan["xml_bytes"]))
    compiled = openvino().Core().compile_model(model, "CPU", settings_of(plan))
    found: list[tuple[int, dict[str, Any]]] = []
    for layer in compiled.get_runtime_model().get_ordered_ops():
        info = {key: str(value) for key, value in _pairs(layer.get_rt_info())}
        what = info.get("layerType", layer.get_type_name())
        if what in NO_WORK:
            continue
        step = {
            "what": what,
            "name": layer.get_friendly_name(),
            "kernel": info.get("primitiveType", ""),
            "precision": info.get("runtimePrecision", ""),
            "layout": info.get("outputLayouts", ""),
            "from": info.get("originalLayersNames", ""),
        }
        found.append((int(info.get("execOrder", len(found))), step))
    return [step for _, step in sorted(found, key=lambda item: item[0])]


def _pairs(info: Any) -> list[tuple[str, Any]]:
    """Returns a map's pairs, their values taken out of OpenVINO's wrappers."""
    return [(key, getattr(info[key], "value", info[key])) for key in info]
