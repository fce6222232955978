"""Runs sub-graphs by TVM with schedules of our own."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from collage_engine.machine.cuda import cuda_probe, generation
from collage_engine.machine.device import processor
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.quantized import pattern_table
from collage_engine.partition.rules import PartitionRule, fusion_rules
from collage_engine.records.format import NHWC, PLAIN
from collage_engine.records.graph import OperatorNumber, TensorType
from collage_engine.records.operators import is_opaque, names_where, onnx_type, title
from collage_engine.records.precision import BFLOAT16, FLOAT16, in_precision
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainAbout,
    ToolchainInstance,
    ToolchainState,
)
from collage_engine.support.errors import ToolchainError, short_reason
from collage_engine.toolchains.base import Function, Toolchain
from collage_engine.toolchains.runtime.cuda import against_kernels, on_device
from collage_engine.toolchains.tvm.tuner import TvmTuning

SUPPORTED = names_where(kernel=True)
"""Relax operators that TVM makes kernels of."""


def reason_against(graph: DataflowGraph, index: int) -> str | None:
    """Return None when the call can be lowered to kernels, else a sentence why not."""
    node = graph.nodes[index]
    op, attributes = node.op, node.attributes
    read = (graph.values[source].type for source in node.inputs)
    if any(not kind.elements for kind in (*node.types, *read)):
        return f"{onnx_type(op)}: a kernel may read beyond a value without elements"
    if op == "power" and not node.type.dtype.startswith(("float", "bfloat")):
        return "Pow: TVM raises floats only to powers"
    if op.endswith("_transpose") and (
        int(attributes["groups"]) > 1 or any(int(d) > 1 for d in attributes["dilation"])
    ):
        return f"{onnx_type(op)}: TVM has no fast kernel with groups or dilation"
    if op in SUPPORTED or op.startswith("call_tir:"):
        return None
    if is_opaque(op):
        return f"TVM has no operator like ONNX's {title(op)}"
    return f"TVM has no kernel for {onnx_type(op)}"


INSTALL = "pip install 'apache-tvm==0.27.0.post1' 'apache-tvm-ffi==0.1.14.post1'"
SWALLOWING_ON_DEVICE = frozenset(
    (
        *("nn.relu", "clip", "maximum", "minimum", "max", "min"),
        *("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"),
    )
)
"""Operators of which CUDA makes ``fmaxf`` and ``fminf``, which give the number where one is NaN."""


class TvmToolchain(TvmTuning, Toolchain):
    """Relax functions lowered to kernels that this toolchain's own schedules write."""

    about = ToolchainAbout(
        name="tvm",
        title="TVM",
        licence="Apache-2.0",
        targets=("cpu", "cuda"),
        mixes_precision=True,
        own_threads=False,
        install=INSTALL,
        colour="#0072b2",
        letters="TV",
        pattern="solid",
    )
    depends = (
        "collage_engine.partition.quantized",
        "collage_engine.partition.quantized_numbers",
        "collage_engine.kernels",
    )

    def probe(self) -> ToolchainState:
        """Implement ``Toolchain.probe``."""

        def missing(reason: str) -> ToolchainState:
            return ToolchainState(name=self.name, available=False, reason=reason)

        try:
            version = importlib.metadata.version("apache-tvm")
        except importlib.metadata.PackageNotFoundError:
            return missing("the package apache-tvm is not installed")
        try:
            import tvm
        except Exception as error:
            return missing(f"apache-tvm {version} does not load: {error}")
        if not tvm.runtime.enabled("llvm"):
            return missing(f"apache-tvm {version} was built without LLVM")
        devices = cuda_probe().devices
        reason = against_kernels(devices[0].architecture) if devices else None
        usable = devices if reason is None else ()
        return ToolchainState(
            name=self.name,
            available=True,
            version=version,
            reason=reason,
            devices=("cpu", *(device.record().name for device in usable)),
            targets=self.about.targets if reason is None else ("cpu",),
            builds=True,
        )

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return its configurations; see ``Toolchain.instances``."""
        if target.kind == "cuda":
            return self._on_device(target.architecture, precision)
        plain = ToolchainInstance(toolchain=self.name, threads=target.threads)
        if precision == BFLOAT16 and "avx512_bf16" in processor().flags:
            return plain, in_precision(plain, BFLOAT16)
        return (plain,)

    def _on_device(self, architecture: str, precision: str) -> tuple[ToolchainInstance, ...]:
        from collage_engine.kernels.cuda.problems import FIRST
        from collage_engine.kernels.cuda.product.plan import F16

        # Float16 keeps more digits than bfloat16.
        rounds = precision in (FLOAT16, BFLOAT16) and generation(architecture) >= FIRST[F16]
        return on_device(self.name, architecture, FLOAT16 if rounds else None)

    def formats(self, instance: ToolchainInstance) -> tuple[str, ...]:
        """Implement ``Toolchain.formats``."""
        # A GPU's schedules take images channels first.
        return (PLAIN,) if instance.architecture else (PLAIN, NHWC)

    def supports(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> str | None:
        """Implement ``Toolchain.supports``."""
        return reason_against(graph, index)

    def swallows_nan(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> bool:
        """Implement ``Toolchain.swallows_nan``: kernels for the processor hand NaN on."""
        return bool(instance.architecture) and graph.nodes[index].op in SWALLOWING_ON_DEVICE

    def rounds(
        self, graph: DataflowGraph, index: OperatorNumber, instance: ToolchainInstance
    ) -> bool:
        """Implement ``Toolchain.rounds``: Winograd's products stay in float32."""
        from collage_engine.kernels.target import cpu
        from collage_engine.toolchains.tvm.bfloat16 import rounds

        return bool(instance.architecture) or rounds(graph, index, cpu(instance.threads))

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionRule:
        """Implement ``Toolchain.partition_spec``."""
        return fusion_rules(self.name, pattern_table(self.name))

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        return ()

    def lower(self, function: Function) -> Any:
        """Implement ``capabilities.LowersToTir``."""
        from collage_engine.kernels.choices import choices_of, using
        from collage_engine.toolchains.tvm.lowering import lower_function, relax_module

        try:
            if function.instance.architecture:
                from collage_engine.kernels.cuda import lowering as cuda
                from collage_engine.toolchains.tvm.cuda_integers import CudaWriter

                architecture = function.instance.architecture
                precision = function.instance.precision
                module, full = relax_module(function, writer=CudaWriter)
                with using(choices_of(function.instance)):
                    return cuda.lower_module(module, architecture, precision, full or frozenset())
            with using(choices_of(function.instance)):
                return lower_function(function)
        except ToolchainError:
            raise
        except Exception as error:
            # TVM's errors come as several exception types, often with a C++ trace for a text.
            reason = short_reason(error)
            raise ToolchainError(f"TVM could not lower {function.symbol}: {reason}") from error

    def conversion(self, kind: TensorType, source: str, target: str, threads: int) -> Any:
        """Implement ``capabilities.ConvertsFormats``."""
        from collage_engine.toolchains.tvm.lowering import conversion

        return conversion(kind, source, target, threads).function

    def inside(self, module: Any) -> dict[str, Any]:
        """Implement ``Toolchain.inside``.

        Returns:
            ``kernels``: one record a kernel, with the rule that wrote it and its TIR text.
        """
        from tvm import tirx

        from collage_engine.kernels.scheduler import SCHEDULE

        kernels = [
            {
                "name": str(variable.name_hint),
                "schedule": str((function.attrs or {}).get(SCHEDULE, "unknown")),
                "tir": function.script(),
            }
            for variable, function in module.functions.items()
            if isinstance(function, tirx.PrimFunc)
        ]
        return {"kernels": kernels}
