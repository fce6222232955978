"""Runs sub-graphs by OpenVINO: each becomes a model in its IR, called through the C API."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.machine.device import processor
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    ToolchainAbout,
)
from collage_engine.support.errors import ToolchainError, UnsupportedError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.openvino import profile, wheel
from collage_engine.toolchains.openvino.differences import (
    inexact,
    rounds_otherwise,
    saturates,
    unsupported_semantics,
)
from collage_engine.toolchains.runtime import weight_files
from collage_engine.toolchains.runtime.builder import HELD, RuntimeSource
from collage_engine.toolchains.runtime.onnx_fed import ARRAY_TYPES, OnnxFedToolchain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from onnx import ModelProto, NodeProto

    from collage_engine.model.dataflow_graph import DataflowGraph
    from collage_engine.model.whole_numbers import WholeNumbers
    from collage_engine.records.graph import Node, OperatorNumber
    from collage_engine.records.placement import Layer, Profile
    from collage_engine.records.toolchain import ToolchainInstance


class OpenVinoToolchain(OnnxFedToolchain):
    """OpenVINO's CPU plugin, which is best with whole models and large sub-graphs.

    A call costs some microseconds whatever it does, and inside a partition it chooses layouts of
    its own, which small partitions convert to and from for nothing.
    """

    about = ToolchainAbout(
        name="openvino",
        title="OpenVINO",
        licence="Apache-2.0",
        install="pip install openvino",
        colour="#56b4e9",
        letters="OV",
        pattern="level",
    )
    packages = (wheel.PACKAGE,)
    swallowing = frozenset(
        (
            *("Relu", "HardSigmoid", "Clip", "Max", "Min", "Exp", "Softmax", "LogSoftmax"),
            *("ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "Greater", "GreaterOrEqual"),
        )
    )
    types = ARRAY_TYPES - {"float64", "uint32", "uint64"} | {"bfloat16"}
    """Element types that the CPU plugin computes in, or converts without loss of what models use:
    float16 is computed in float32, int64 in int32 (``differences.py``)."""
    computes_bfloat16 = True
    reads_weight_files = True

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        library = wheel.library("openvino_c")
        # In this process OpenVINO's Python interface also reads ONNX, through the same library.
        files = (*wheel.runtime_files(), wheel.library("openvino_onnx_frontend"))
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / "openvino_module.cc",
            plan_version=2,
            library_version=self.version(),
            shared=(HELD,),
            includes=(wheel.headers(),),
            links=(library,),
            beside=tuple((file.name, file) for file in files),
        )

    def inexact(self, numbers: WholeNumbers, node: Node, bounds: Sequence[float]) -> str | None:
        """Implement ``OnnxFedToolchain.inexact``."""
        return rounds_otherwise(numbers.graph, node) or inexact(numbers, node, bounds)

    def swallows_nan(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> bool:
        """Implement ``Toolchain.swallows_nan``: of NaN it also makes a False, not a True."""
        node = graph.nodes[index]
        return super().swallows_nan(graph, index, instance) or (
            node.op == "astype" and node.type.dtype == "bool"
        )

    def misreads(self, node: NodeProto, opset: int) -> bool:
        """Implement ``OnnxFedToolchain.misreads``."""
        return unsupported_semantics(node, opset)

    def plan_of(self, function: Function, model: ModelProto) -> tuple[dict[str, Any], bytes]:
        """Return the plan and the weights of a function, for its C++ runtime.

        Raises:
            UnsupportedError: Its sums of 8-bit products may saturate on this processor.
        """
        from collage_engine.model.onnx_external import is_mapped
        from collage_engine.toolchains.openvino.intermediate import from_onnx, to_ir, write_ir

        if saturates(model, processor().flags):
            raise UnsupportedError(
                "OpenVINO's sums of 8-bit products saturate on a processor without VNNI"
            )
        model_read = from_onnx(model)
        kinds = [*map(function.input_type, function.inputs)]
        kinds += map(function.output_type, function.outputs)
        for port, kind in zip((*model_read.inputs, *model_read.outputs), kinds, strict=True):
            shape = port.get_partial_shape()
            if shape.is_dynamic or tuple(shape.to_shape()) != kind.shape:
                raise ToolchainError(f"openvino sees {shape} where {kind} is")
        plan: dict[str, Any] = {
            "precision": function.instance.option("precision", "f32"),
            "largest": self.largest_inputs(function),
            **({"only_saved": True} if function.only_saved else {}),
        }
        if any(map(is_mapped, model.graph.initializer)):
            name = f"weights-{uuid.uuid4().hex[:16]}.bin"
            plan[weight_files.PLAN_KEY] = [name]
            xml, constants = write_ir(model_read, weight_files.folder() / name), b""
        else:
            xml, constants = to_ir(model_read)
        return plan | {"xml_bytes": len(xml)}, constants + xml

    def read_profile(self, content: Any) -> Profile | None:
        """Implement ``capabilities.ReadsProfiles``."""
        is_text = isinstance(content, str)
        return profile.read_table(content) if is_text else profile.read_json(content)

    def partition_layers(self, graph: DataflowGraph, said: Mapping[str, Any]) -> tuple[Layer, ...]:
        """Implement ``capabilities.ProfilesPartitions``, from the counters of its request."""
        return profile.profile_of(said["rows"]).layers

    def profile_layers(
        self, file: str, threads: int, precision: str, inputs: Mapping[str, np.ndarray]
    ) -> Profile:
        """Implement ``capabilities.ProfilesLayers``."""
        return profile.profile_layers(file, threads, precision, inputs)

    def inside(self, module: Any) -> dict[str, Any]:
        """Return the settings, and the layers that its CPU plugin executes."""
        from collage_engine.toolchains.openvino.intermediate import executed_layers

        described = super().inside(module)
        _, plan, model = self.unpack(module)
        if plan.get(weight_files.PLAN_KEY):
            return described  # its constants are not among the model's bytes
        described["steps"] = executed_layers(model, plan)
        return described

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        files = wheel.runtime_files()
        shipped = (self.carried(file, licence=wheel.LICENCES.get(file.name, "")) for file in files)
        return *shipped, self.own_library()
