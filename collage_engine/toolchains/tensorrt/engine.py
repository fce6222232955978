"""Builds engines, and reads the layers of profiles.

TensorRT parses a partition's ONNX itself, and is told with what arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from collage_engine.records.placement import Layer, Profile
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.tensorrt.library import (
    Api,
    api,
    bare,
    reason_against_architecture,
)

TYPES = {
    "bool": "BOOL",
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "HALF",
    "bfloat16": "BF16",
    "float32": "FLOAT",
}
"""TensorRT's names of element types."""


@dataclass(frozen=True)
class Engine:
    """An engine that TensorRT built, serialised."""

    plan: bytes
    about: dict[str, Any]
    """Release, flavour and number of layers, for the faces and for the loading process."""


def build_engine(
    model: bytes,
    inputs: Sequence[str],
    outputs: Sequence[str],
    architecture: str,
    tf32: bool = False,
) -> Engine:
    """Build the engine of an ONNX model; its tensors are called input0, …, output0, ….

    Args:
        model: The model, with its weights.
        inputs: Element types of its inputs.
        outputs: Element types of its outputs.
        architecture: The device's architecture, for example ``sm_90a``.
        tf32: Whether products of float32 may be rounded to tf32.

    Raises:
        ToolchainError: TensorRT builds no engine; the text says why.
    """
    trt_api = api()
    reason = reason_against_architecture(architecture)
    if reason is not None:
        raise ToolchainError(reason)
    log = logger(trt_api)
    builder = trt_api.trt.Builder(log)
    if builder is None or log.broken:
        raise ToolchainError(reason_of(log, "TensorRT's builder does not start"))
    network = builder.create_network(creation_flags(trt_api))
    parser = trt_api.trt.OnnxParser(network, log)
    if not parser.parse(model):
        errors = [parser.get_error(n).desc() for n in range(parser.num_errors)]
        raise ToolchainError(f"TensorRT's parser: {(errors or ['no reason is given'])[0]}")
    _name(trt_api, "input", [network.get_input(n) for n in range(network.num_inputs)], inputs)
    _name(trt_api, "output", [network.get_output(n) for n in range(network.num_outputs)], outputs)
    config = builder.create_builder_config()
    configure(trt_api, config, architecture, tf32)
    serialised = builder.build_serialized_network(network, config)
    if serialised is None:
        raise ToolchainError(reason_of(log, "TensorRT builds no engine of it"))
    about = {
        "library": trt_api.module,
        "title": trt_api.title,
        "version": trt_api.version,
        "architecture": bare(architecture),
        "layers": network.num_layers,
    }
    return Engine(bytes(serialised), about)


def _name(trt_api: Api, kind: str, tensors: Sequence[Any], types: Sequence[str]) -> None:
    """Give tensors the names by which the runtime binds them, and check their element types.

    Raises:
        ToolchainError: The parser changed their number or a type: older releases read int64 as
            int32.
    """
    if len(tensors) != len(types):
        raise ToolchainError(f"TensorRT's parser made {len(tensors)} {kind}s of {len(types)}")
    for number, (tensor, dtype) in enumerate(zip(tensors, types, strict=True)):
        wanted = getattr(trt_api.trt.DataType, TYPES.get(dtype, ""), None)
        if tensor.dtype != wanted:
            raise ToolchainError(f"TensorRT {trt_api.version} takes and gives no {dtype} here")
        tensor.name = f"{kind}{number}"


@cache
def _idle_parser() -> tuple[Any, ...] | None:
    """Return a parser that is only asked, and what it needs; None where no builder starts."""
    trt_api = api()
    log = logger(trt_api)
    builder = trt_api.trt.Builder(log)
    if builder is None or log.broken:
        return None
    network = builder.create_network(creation_flags(trt_api))
    return trt_api.trt.OnnxParser(network, log), network, builder, log


@cache
def parses(onnx_type: str) -> bool:
    """Tells whether TensorRT's parser knows an operator, as far as it can be asked here.

    Raises:
        ToolchainError: TensorRT cannot be loaded.
    """
    idle = _idle_parser()
    return idle is None or bool(idle[0].supports_operator(onnx_type))


def logger(trt_api: Api) -> Any:
    """Return a logger that keeps errors and prints nothing."""
    trt = trt_api.trt
    severity = trt.ILogger.Severity

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.broken = False

        def log(self, level: Any, message: str) -> None:
            if level in (severity.INTERNAL_ERROR, severity.ERROR):
                self.errors.append(message)
                self.broken = self.broken or level == severity.INTERNAL_ERROR

    return Logger()


_PLACE = re.compile(
    r"^(\[\S+\]\s*)?([\w:]+:\s*)?(Error Code \d+:\s*)?|\s*\(In \w+ at .*$|\s*\[\S+:\d+\]\s*$"
)


def reason_of(log: Any, otherwise: str) -> str:
    """Return TensorRT's first error without the places in its sources.

    ``otherwise`` if there is none.
    """
    lines = [line.strip() for text in log.errors for line in text.splitlines() if line.strip()]
    return f"TensorRT: {_PLACE.sub('', lines[0])}" if lines else otherwise


def creation_flags(trt_api: Api) -> int:
    """Return the flags with which networks are created: they compute in the types of the model."""
    flag = getattr(trt_api.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 1 << int(flag) if flag is not None else 0  # a release has none where it is the rule


def configure(trt_api: Api, config: Any, architecture: str, tf32: bool) -> None:
    """Set the builder's options so that all toolchains compute with equal arithmetic.

    The engine uses one stream, and the architecture is named where the release can be told it.

    Args:
        trt_api: The TensorRT that is installed.
        config: The builder's configuration, which is changed.
        architecture: The device's architecture.
        tf32: Whether products of float32 may be rounded to tf32.
    """
    trt, flags = trt_api.trt, trt_api.trt.BuilderFlag
    if hasattr(flags, "TF32"):  # on unless it is cleared
        (config.set_flag if tf32 else config.clear_flag)(flags.TF32)
    if hasattr(config, "max_aux_streams"):
        config.max_aux_streams = 0
    if trt_api.architectures():
        name = bare(architecture).replace("sm_", "SM")
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, name), 0)


ONNX_NAME = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
INSERTED = ("Reformatting CopyNode", "Reformat")


def read_profile(data: Any) -> Profile | None:
    """Return the layers of a file of trtexec; None: it is none."""
    found = data.get("Layers") if isinstance(data, dict) else data
    if not isinstance(found, list):
        return None
    layers = [
        _layer(each)
        for each in found
        if isinstance(each, dict) and ("Name" in each or "averageMs" in each)
    ]
    return Profile(toolchain="tensorrt", layers=tuple(layers)) if layers else None


def _layer(about: dict[str, Any]) -> Layer:
    name = str(about.get("Name", about.get("name", "")))
    took = about.get("medianMs", about.get("averageMs"))
    # "conv1 + PWN(relu1)", "{ForeignNode[a...b]}"; metadata name every node
    names = ONNX_NAME.findall(str(about.get("Metadata", "")))
    for part in () if names else re.split(r" \+ |\.\.\.|\|\|", name):
        names.append(re.sub(r"^(\{ForeignNode\[|\w+\()|[)\]}]+$", "", part.strip()))
    kind = str(about.get("LayerType", "layer"))
    inserted = name.startswith(INSERTED) or kind == "Reformat"
    return Layer(
        name=name,
        kind="Reformat" if inserted else kind,
        us=float(took) * 1e3 if took is not None else None,
        nodes=() if inserted else tuple(dict.fromkeys(names)),
        absorbs="before" if "ForeignNode" in name else "nothing",
        kernel=str(about.get("TacticName", "")),
    )
