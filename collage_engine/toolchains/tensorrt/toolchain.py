"""Runs engines that TensorRT or TensorRT-RTX builds from sub-graphs of any size."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collage_engine.records.graph import OperatorNumber
from collage_engine.records.operators import onnx_type
from collage_engine.records.precision import TF32, in_precision
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
    ToolchainState,
)
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime.builder import RuntimeSource
from collage_engine.toolchains.runtime.cuda import (
    SHARED,
    cuda_includes,
    cuda_runtime,
    cudart_library,
    device_state,
)
from collage_engine.toolchains.runtime.onnx_fed import OnnxFedToolchain, serialised
from collage_engine.toolchains.tensorrt import library
from collage_engine.toolchains.tensorrt.engine import TYPES, build_engine, parses

if TYPE_CHECKING:
    from onnx import ModelProto

    from collage_engine.model.dataflow_graph import DataflowGraph
    from collage_engine.records.placement import Profile

PYTHON_PART = "collage_tensorrt.py"
"""The name of python_runtime.py in an artifact."""
_LAST: dict[str, Any] = {}
"""The engine that was built last in this process, and of what (its instance and the SHA-256 of its
ONNX model), so that a repeated request needs no second build."""


class TensorrtToolchain(OnnxFedToolchain):
    """TensorRT 10 or 11 or TensorRT-RTX, whichever is installed, fed through its ONNX parser.

    Engines compute in the types of the model, and run through its Python interface, since no wheel
    carries the C++ headers; an artifact then needs Python and says so. None has run on a device.
    """

    about = ToolchainAbout(
        name="tensorrt",
        title="TensorRT",
        licence="LicenseRef-NVIDIA-TensorRT",
        targets=("cuda",),
        install=library.INSTALL,
        colour="#8810ec",
        letters="TR",
        pattern="dense",
    )
    types = frozenset(TYPES)

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        return library.api().version

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        _, cudart = cuda_runtime()
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / "tensorrt_module.cc",
            plan_version=1,
            library_version="",
            includes=cuda_includes(),
            links=(cudart,),
            shared=(SHARED,),
            beside=(("libcudart.so.13", cudart),),
        )

    def probe(self) -> ToolchainState:
        """Find out whether TensorRT, or TensorRT-RTX, can be used on this machine.

        Without a device only TensorRT-RTX builds engines; TensorRT times them on the device.
        """
        state = device_state(self, library.reason_against_architecture)
        if state.available or not state.builds:
            return state
        trt_api = library.api()
        after = (
            f"; TensorRT-RTX builds for {', '.join(trt_api.architectures())}"
            if trt_api.rtx
            else ", and TensorRT builds an engine only on the device that runs it"
        )
        return msgspec.structs.replace(state, reason=f"{state.reason}{after}", builds=trt_api.rtx)

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return its configurations; see ``Toolchain.instances``."""
        plain = ToolchainInstance(
            toolchain=self.name, device="cuda:0", architecture=target.architecture
        )
        return (plain, in_precision(plain, TF32)) if precision == TF32 else (plain,)

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        """Implement ``Toolchain.supports``."""
        if instance.architecture:
            reason = library.reason_against_architecture(instance.architecture)
            if reason is not None:
                return reason
        from onnx import defs

        title = onnx_type(graph.nodes[index].op)
        if defs.has(title) and not parses(title):
            return f"TensorRT's parser knows no {title}"
        return super().supports(graph, index, instance)

    def plan_of(self, function: Function, model: ModelProto) -> tuple[dict[str, Any], bytes]:
        """Return the program and the engine of a function.

        The engine that was asked for last is kept, since a candidate is measured in several copies
        and building takes seconds.
        """
        from collage_engine.model.onnx_external import with_own_weights

        data = serialised(with_own_weights(model))
        key = function.instance, hashlib.sha256(data).digest()
        if _LAST.get("key") != key:
            _LAST.clear()
            _LAST.update(built=self._build(function, data), key=key)
        plan, weights = _LAST["built"]
        return dict(plan), weights

    def _build(self, function: Function, data: bytes) -> tuple[dict[str, Any], bytes]:
        engine = build_engine(
            data,
            [function.input_type(index).dtype for index in function.inputs],
            [function.output_type(index).dtype for index in function.outputs],
            function.instance.architecture,
            function.instance.precision == TF32,
        )
        return {**engine.about, "engine_bytes": len(engine.plan)}, engine.plan

    def create(self, symbol: str, plan: dict[str, Any], weights: bytes) -> Any:
        """Implement ``CppToolchain.create``."""
        from collage_engine.toolchains.tensorrt import python_runtime

        python_runtime.register()
        return super().create(symbol, plan, weights)

    def read_profile(self, content: Any) -> Profile | None:
        """Implement ``capabilities.ReadsProfiles``."""
        from collage_engine.toolchains.tensorrt.engine import read_profile

        return read_profile(content)

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the file that opens engines from Python, CUDA's runtime and its own."""
        file = Path(__file__).parent / "python_runtime.py"
        part = self.carried(file, PYTHON_PART, "Apache-2.0")
        part = msgspec.structs.replace(part, python=library.api().module)
        return part, cudart_library(self.name), self.own_library()
