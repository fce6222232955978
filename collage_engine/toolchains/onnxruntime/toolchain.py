"""Runs sub-graphs by ONNX Runtime: each becomes an ONNX model, called through the C API.

Where the package onnxruntime-gpu is installed and a device is there, its provider for NVIDIA
devices is a further instance.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.whole_numbers import WholeNumbers, is_whole, most
from collage_engine.partition.quantized import pattern_table
from collage_engine.partition.rules import PartitionRule
from collage_engine.records.graph import OperatorNumber
from collage_engine.records.operators import onnx_type
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
    ToolchainState,
)
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.onnxruntime.providers import (
    GPU_PACKAGE,
    has_provider,
    provider_libraries,
    provider_plan,
)
from collage_engine.toolchains.runtime import weight_files
from collage_engine.toolchains.runtime.builder import HELD, RuntimeSource, find_in_wheel
from collage_engine.toolchains.runtime.chains import fusing_rules
from collage_engine.toolchains.runtime.cuda import LICENCE, on_device, rounded_to
from collage_engine.toolchains.runtime.onnx_fed import ARRAY_TYPES, OnnxFedToolchain, serialised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from onnx import ModelProto

    from collage_engine.records.graph import Node
    from collage_engine.records.placement import Layer, Profile
    from collage_engine.toolchains.onnxruntime.python_api import Evaluator

IN_FLOAT64 = ("mean", "power", "prod", "sum")
"""Relax operators of int32 and int64 that ONNX Runtime 1.32 computes in float64 (seen)."""
FLOAT64 = 2**53
"""The largest magnitude up to which float64 holds all whole numbers."""


FOLDING = "ConstantFolding"
"""ONNX Runtime's name of the optimizer that computes what depends on no input."""


class OnnxRuntimeToolchain(OnnxFedToolchain):
    """ONNX Runtime's CPU provider with its default settings, and its provider for devices."""

    about = ToolchainAbout(
        name="onnxruntime",
        title="ONNX Runtime",
        licence="MIT",
        targets=("cpu", "cuda"),
        install="pip install onnxruntime",
        colour="#e69f00",
        letters="OR",
        pattern="rising",
    )
    packages = (GPU_PACKAGE, "onnxruntime")
    types = ARRAY_TYPES | {"string"}
    returns_open_values = True
    swallowing = frozenset(("ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool"))
    reads_weight_files = True

    def library(self) -> Path:
        """Return the library's file."""
        return find_in_wheel(self.package(), f"libonnxruntime.so.{self.version()}")

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / "ort_module.cc",
            plan_version=1,
            library_version=self.version(),
            shared=(HELD,),
            beside=(
                ("libonnxruntime.so.1", self.library()),
                *(provider_libraries() if has_provider() else ()),
            ),
        )

    def probe(self) -> ToolchainState:
        """Implement ``Toolchain.probe``; the devices say whether it has a provider for one."""
        from collage_engine.machine.cuda import cuda_probe

        state = super().probe()
        if not state.available:
            return state
        devices = cuda_probe().devices if has_provider() else ()
        return msgspec.structs.replace(
            state,
            targets=("cpu", "cuda") if devices else ("cpu",),
            devices=("cpu", *(device.record().name for device in devices)),
        )

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return its configurations; see ``Toolchain.instances``."""
        if target.kind == "cuda":
            lower = rounded_to(target.architecture, precision)
            return on_device(self.name, target.architecture, lower) if has_provider() else ()
        return super().instances(target, precision)

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        """Implement ``Toolchain.supports``."""
        if instance.architecture:
            types = graph.nodes[index].types
            if any(value.is_open or value.dtype == "string" for value in types):
                return "its provider for devices returns no texts, and no values of unknown size"
        return super().supports(graph, index, instance)

    def inexact(self, numbers: WholeNumbers, node: Node, bounds: Sequence[float]) -> str | None:
        """Implement ``OnnxFedToolchain.inexact``: some kernels of whole numbers are of float64."""
        if node.op not in IN_FLOAT64 or not is_whole(node.type):
            return None
        if max(*numbers.operands(node, bounds), numbers.result(node, bounds)) <= min(
            FLOAT64, most(node.type)
        ):
            return None
        return (
            f"ONNX Runtime computes {onnx_type(node.op)} of {node.type.dtype} in float64, which "
            "holds whole numbers up to 2^53; what leaves the type does not wrap around"
        )

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionRule:
        """Return the rules of what its optimiser fuses, and of any operator by itself.

        Larger pieces come from blocks, regions and the whole model, which suit it better than what
        combiners would join.
        """
        return fusing_rules(
            self.name,
            lambda graph, index: self.supports(graph, index, instance),
            pattern_table(self.name),
        )

    def plan_of(self, function: Function, model: ModelProto) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights of a function, for its C++ runtime."""
        from collage_engine.model.onnx_external import name_files

        files = weight_files.provide(name_files(model))
        plan = {
            "input_names": [value.name for value in model.graph.input],
            "output_names": [value.name for value in model.graph.output],
            **provider_plan(function.instance),
        }
        if files:
            plan[weight_files.PLAN_KEY] = files
        return plan, serialised(model)

    def finish(self, function: Function, plan: dict[str, Any], weights: bytes) -> Any:
        """Implement ``CppToolchain.finish``; what is refused is tried with fewer sizes known.

        Constant folding computes nodes of branches that are never taken, too, and the session is
        refused where one does not fit the sizes of the inputs (onnxruntime 1.32, Silero VAD at
        16 kHz, whose branch for 8 kHz takes other sizes). With open sizes the rest of the model is
        folded all the same: Silero VAD takes 72 µs, and 107 µs without any folding.
        """
        try:
            return super().finish(function, plan, weights)
        except ToolchainError as refusal:
            name = function.graph.nodes[function.members[0]].name
            for how, further, model in (
                ("with the sizes of its inputs left open", {}, _with_open_sizes(weights)),
                (f"without {FOLDING}", {"without_optimizers": FOLDING}, weights),
            ):
                with contextlib.suppress(ToolchainError):
                    module = super().finish(function, plan | further, model)
                    function.notes.append(
                        f"{self.about.title} runs its partition from {name!r} on {how}; as it is "
                        f"refused: {refusal}"
                    )
                    return module
            raise

    def read_profile(self, content: Any) -> Profile | None:
        """Implement ``capabilities.ReadsProfiles``."""
        from collage_engine.toolchains.onnxruntime.profile import read_profile

        return read_profile(content)

    def partition_layers(self, graph: DataflowGraph, said: Mapping[str, Any]) -> tuple[Layer, ...]:
        """Implement ``capabilities.ProfilesPartitions``, from the profile of its session."""
        begin = Path(said["files"])
        for file in sorted(begin.parent.glob(f"{begin.name}_*.json"), reverse=True):
            # Of several instances only the one that was asked has ended its profile.
            with contextlib.suppress(json.JSONDecodeError):
                profile = self.read_profile(json.loads(file.read_text()))
                return profile.layers if profile is not None else ()
        return ()

    def profile_layers(
        self, file: str, threads: int, precision: str, inputs: Mapping[str, np.ndarray]
    ) -> Profile:
        """Implement ``capabilities.ProfilesLayers``."""
        from collage_engine.toolchains.onnxruntime.profile import profile_layers

        return profile_layers(file, threads, inputs)

    def open_onnx(
        self,
        model: bytes | str,
        *,
        threads: int = 0,
        optimise: bool = False,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> Evaluator:
        """Implement ``capabilities.EvaluatesOnnx``."""
        from collage_engine.toolchains.onnxruntime.python_api import Evaluator

        return Evaluator(model, threads, optimise, weights or {})

    def inside(self, module: Any) -> dict[str, Any]:
        """Return the settings, and the operators that its optimiser has made of the sub-graph."""
        import onnx

        described = super().inside(module)
        symbol, plan, model = self.unpack(module)
        if plan.get(weight_files.PLAN_KEY):
            return described  # what the optimiser has made of it may be more than ONNX files hold
        with tempfile.TemporaryDirectory(prefix="collage-") as folder:
            path = Path(folder) / "optimized.onnx"
            self.create(symbol, plan | {"optimized_model": str(path)}, model)
            graph = onnx.load(str(path), load_external_data=False).graph
        described["steps"] = [
            {"what": node.op_type, "name": node.name, "domain": node.domain or "ai.onnx"}
            for node in graph.node
        ]
        return described

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        return self.carried(self.library(), "libonnxruntime.so.1"), self.own_library()

    def libraries_for(self, functions: Sequence[Function]) -> tuple[RuntimeLibrary, ...]:
        """Return the provider's libraries, too, where a function runs on a device."""
        on_device = any(function.instance.architecture for function in functions)
        further = (
            self.carried(file, name, "" if name.startswith("libonnxruntime") else LICENCE)
            for name, file in (provider_libraries() if on_device else ())
        )
        return (*self.runtime_libraries(), *further)


def _with_open_sizes(content: bytes) -> bytes:
    """Return an ONNX model that says of its inputs and outputs how many axes they have, no sizes.

    Args:
        content: The model's bytes.
    """
    from onnx import ModelProto

    model = ModelProto.FromString(content)
    for value in (*model.graph.input, *model.graph.output):
        for size in value.type.tensor_type.shape.dim:
            size.Clear()
    return serialised(model)
