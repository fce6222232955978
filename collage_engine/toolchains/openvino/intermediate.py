"""Converts ONNX to OpenVINO's IR, in which an artifact carries partitions, and looks into it.

IR needs only its own small frontend where it is deployed (0.6 MB; ONNX's is 6.8 MB), holds every
constant once, and OpenVINO's constants point into it instead of copying it.
"""

from __future__ import annotations

import io
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.model.onnx_external import name_files
from collage_engine.support.errors import ToolchainError
from collage_engine.support.files import link_file
from collage_engine.toolchains.openvino.wheel import library, openvino
from collage_engine.toolchains.runtime.onnx_fed import serialised

if TYPE_CHECKING:
    from onnx import ModelProto


@cache
def _frontend() -> Any:
    """Return OpenVINO's ONNX frontend, with the manager that must outlive it.

    It is named by its path: where an artifact brought the process's OpenVINO, the frontend does not
    lie beside that.
    """
    manager = openvino().frontend.FrontEndManager()
    manager.register_front_end("onnx", str(library("openvino_onnx_frontend")))
    return manager, manager.load_by_framework("onnx")


def from_onnx(model: ModelProto) -> Any:
    """Return the ``openvino.Model`` of an ONNX model.

    Raises:
        ToolchainError: OpenVINO cannot take the model; the text says why.
    """
    with tempfile.TemporaryDirectory(prefix="collage-") as folder:
        files = name_files(model)
        for name, file in files.items():
            link_file(file, Path(folder) / name)
        data = serialised(model)
        if not files:
            return _converted(io.BytesIO(data))
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        return _converted(str(path))  # its constants are mapped, and keep the files


def _converted(source: io.BytesIO | str) -> Any:
    """Read the model of a stream, or of a file with weights beside it."""
    _, frontend = _frontend()
    try:
        model = frontend.convert(frontend.load(source))
    except Exception as error:
        raise ToolchainError(f"openvino: {reason_of(error)}") from error
    _take_first_of_equals(model)
    return model


def _take_first_of_equals(model: Any) -> None:
    """Have every TopK of an ``openvino.Model`` name the first of equal values, as ONNX demands.

    The frontend asks for it for ArgMax and ArgMin alone, and makes a TopK of Hardmax, too. It takes
    10 ms instead of 0.05 ms for 300 of 8,400 values, hence only where the indices are read.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() != "TopK" or not node.output(1).get_target_inputs():
            continue
        attributes = node.get_attributes()
        stable = openvino().opset11.topk(
            *node.input_values(),
            attributes["axis"],
            attributes["mode"],
            "value",  # it is also an order where none is asked for
            attributes["index_element_type"],
            stable=True,
        )
        stable.set_friendly_name(node.get_friendly_name())
        for old, new in zip(node.outputs(), stable.outputs(), strict=True):
            new.set_names(old.get_names())
            old.replace(new)


def write_ir(model: Any, constants: Path) -> bytes:
    """Write the constants of an ``openvino.Model`` to a file, and return its XML."""
    xml = constants.with_suffix(".xml")
    openvino().serialize(model, str(xml), str(constants))
    written = xml.read_bytes()
    xml.unlink()
    return written


def to_ir(model: Any) -> tuple[bytes, bytes]:
    """Return XML and constants of an ``openvino.Model``."""
    with tempfile.TemporaryDirectory(prefix="collage-") as folder:
        constants = Path(folder) / "model.bin"
        return write_ir(model, constants), constants.read_bytes()


_NOISE = (
    "Exception from ",
    "Check '",
    "[",
    "FrontEnd API failed",
    "Model wasn't fully converted",
    "Summary",
    "To facilitate",
    "While validating",
)


def reason_of(error: Exception) -> str:
    """Return what OpenVINO says, without places in its sources and advice for its developers."""
    lines = [line.strip().removeprefix("-- ") for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    if kept and kept[0].endswith("with a message:"):
        kept = [f"{kept[0].removesuffix('with a message:')}{' '.join(kept[1:2])}"]
    return kept[0] if kept else next((line for line in lines if line), type(error).__name__)


NO_WORK = ("Input", "Output", "Const")


def executed_layers(data: bytes, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the layers that OpenVINO executes, each after those that it reads.

    The model is compiled once more, by OpenVINO's Python interface.

    Args:
        data: A module's model bytes: constants, then XML.
        plan: The module's plan.

    Returns:
        For each layer what it is, which kernel runs it, its precision and layout.
    """
    import numpy as np

    core, split = openvino().Core(), len(data) - int(plan["xml_bytes"])
    constants = openvino().Tensor(np.frombuffer(data, np.uint8, split).copy())
    settings = {
        "INFERENCE_NUM_THREADS": plan["threads"],
        "INFERENCE_PRECISION_HINT": plan["precision"],
    }
    compiled = core.compile_model(core.read_model(data[split:], constants), "CPU", settings)
    layers = []
    for layer in compiled.get_runtime_model().get_ordered_ops():
        about = layer.get_rt_info()
        # Its values are in wrappers of OpenVINO's.
        info = {key: str(getattr(about[key], "value", about[key])) for key in about}
        what = info.get("layerType", layer.get_type_name())
        if what not in NO_WORK:
            layers.append(
                {
                    "what": what,
                    "kernel": info.get("primitiveType", ""),
                    "precision": info.get("runtimePrecision", ""),
                    "layout": info.get("outputLayouts", ""),
                }
            )
    return layers
