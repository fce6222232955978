"""Runs sub-graphs by ONNX Runtime: each becomes an ONNX model, called through the C API."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.whole_numbers import WholeNumbers, is_whole, most
from collage_engine.partition.quantized import pattern_table
from collage_engine.partition.rules import PartitionRule
from collage_engine.records.operators import onnx_type
from collage_engine.records.toolchain import ToolchainAbout, ToolchainInstance
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.onnxruntime import python_api
from collage_engine.toolchains.runtime import weight_files
from collage_engine.toolchains.runtime.builder import HELD, RuntimeSource, find_in_wheel
from collage_engine.toolchains.runtime.chains import fusing_rules
from collage_engine.toolchains.runtime.onnx_fed import ARRAY_TYPES, OnnxFedToolchain, serialised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from onnx import ModelProto

    from collage_engine.records.graph import Node
    from collage_engine.records.placement import Layer, Profile

IN_FLOAT64 = ("mean", "power", "prod", "sum")
"""Relax operators of int32 and int64 that ONNX Runtime 1.32 computes in float64 (seen)."""
FLOAT64 = 2**53
"""The largest magnitude up to which float64 holds all whole numbers."""


class OnnxRuntimeToolchain(OnnxFedToolchain):
    """ONNX Runtime's CPU provider with its default settings."""

    about = ToolchainAbout(
        name="onnxruntime",
        title="ONNX Runtime",
        licence="MIT",
        install="pip install onnxruntime",
        colour="#e69f00",
        letters="OR",
        pattern="rising",
    )
    packages = ("onnxruntime-gpu", "onnxruntime")
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
            library_version=self.version(),
            shared=(HELD,),
            beside=(("libonnxruntime.so.1", self.library()),),
        )

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
            try:
                module = super().finish(function, plan, _with_open_sizes(weights))
            except ToolchainError:
                raise refusal from None
            name = function.graph.nodes[function.members[0]].name
            function.notes.append(
                f"{self.about.title} runs its partition from {name!r} on with the sizes of its "
                f"inputs left open; as it is refused: {refusal}"
            )
            return module

    def read_profile(self, content: Any) -> Profile | None:
        """Implement ``capabilities.ReadsProfiles``."""
        return python_api.read_profile(content)

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
        return python_api.profile_layers(file, threads, inputs)

    def open_onnx(
        self,
        model: bytes | str,
        *,
        threads: int = 0,
        optimise: bool = False,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> python_api.Evaluator:
        """Implement ``capabilities.EvaluatesOnnx``."""
        return python_api.Evaluator(model, threads, optimise, weights or {})

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
