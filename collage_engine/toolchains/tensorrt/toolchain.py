"""Runs engines that TensorRT builds from sub-graphs of any size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collage_engine.machine.cuda import cuda_probe, generation
from collage_engine.records.placement import Layer, Profile
from collage_engine.records.precision import TF32
from collage_engine.records.toolchain import (
    Target,
    ToolchainAbout,
    ToolchainInstance,
    ToolchainState,
)
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.cuda import device_state, on_device
from collage_engine.toolchains.runtime.onnx_fed import ARRAY_TYPES, OnnxSessionToolchain

if TYPE_CHECKING:
    from onnx import ModelProto

LEAST = 10
"""The first release whose networks may be strongly typed, and which reads int64 as it is
(TensorRT's release notes)."""


class TensorrtToolchain(OnnxSessionToolchain):
    """TensorRT, fed through its ONNX parser, on the device for which it builds its engines.

    Engines compute in the types of the model, and run through its Python interface, since no wheel
    carries the C++ headers; an artifact then needs Python and says so. No device has run one: there
    is here what the contract asks for, and nothing that makes it faster.
    """

    about = ToolchainAbout(
        name="tensorrt",
        title="TensorRT",
        licence="LicenseRef-NVIDIA-TensorRT",
        targets=("cuda",),
        install="pip install tensorrt",
        colour="#8810ec",
        letters="TR",
        pattern="dense",
    )
    packages = ("tensorrt",)
    types = ARRAY_TYPES - {"float64", "int16", "uint16", "uint32", "uint64"} | {"bfloat16"}
    session = Path(__file__).with_name("session.py")
    module = "tensorrt"

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        version = super().version()
        if int(version.partition(".")[0]) < LEAST:
            raise ToolchainError(f"TensorRT {version} is older than {LEAST}")
        return version

    def probe(self) -> ToolchainState:
        """Implement ``Toolchain.probe``: without a device TensorRT builds nothing."""
        state = device_state(self, lambda: self.check(""))
        return msgspec.structs.replace(state, builds=state.available)

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return its configurations: it builds engines only on the device that runs them."""
        devices = cuda_probe().devices
        if devices and generation(devices[0].architecture) != generation(target.architecture):
            return ()
        return on_device(self.name, target.architecture, TF32 if precision == TF32 else None)

    def plan_of(self, function: Function, model: ModelProto) -> tuple[dict[str, Any], bytes]:
        """Return the plan of a function, and its engine."""
        from collage_engine.toolchains.tensorrt.session import build_engine

        plan, data = super().plan_of(function, model)
        try:
            engine = build_engine(data, function.instance.precision == TF32)
        except RuntimeError as error:
            raise ToolchainError(str(error)) from error
        return {**plan, "on_device": True}, engine

    def read_profile(self, content: Any) -> Profile | None:
        """Implement ``capabilities.ReadsProfiles``: the layers of a file of trtexec."""
        entries = content.get("Layers") if isinstance(content, dict) else content
        layers = [
            _layer(entry)
            for entry in (entries if isinstance(entries, list) else ())
            if isinstance(entry, dict) and ("Name" in entry or "averageMs" in entry)
        ]
        return Profile(toolchain="tensorrt", layers=tuple(layers)) if layers else None


ONNX_NAME = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
INSERTED = ("Reformatting CopyNode", "Reformat")


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
