"""cuDNN's graph API: convolutions and what follows them on NVIDIA devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.records.format import FORMATS
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainInstance
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.native.builder import RuntimeSource
from collage_engine.toolchains.native.cuda import (
    SHARED,
    CudaToolchain,
    cuda_includes,
    cuda_runtime,
    cudart_library,
    find_file,
    version_of,
)

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph
    from collage_engine.partition.spec import PartitionSpec

WHEELS = ("nvidia-cudnn-cu13",)
FRONTEND = ("nvidia-cudnn-frontend",)
LIBRARY = "libcudnn.so.9"


class CudnnToolchain(CudaToolchain):
    """cuDNN 9; of the engines that its heuristics offer, the fastest as measured."""

    name = "cudnn"
    licence = "LicenseRef-NVIDIA-cuDNN"
    install = "pip install 'collage-explorer[cuda]'"
    depends = (
        "collage_engine.partition.quantized", "collage_engine.partition.quantized_numbers",
        "collage_engine.partition.patterns",
    )  # fmt: skip

    def version(self) -> str:
        header = self.header().with_name("cudnn_version.h")
        return version_of(WHEELS, header, "CUDNN_", ("MAJOR", "MINOR", "PATCHLEVEL"))

    def header(self) -> Path:
        return find_file(WHEELS, "cudnn.h")

    def library(self) -> Path:
        return find_file(WHEELS, LIBRARY)

    def source(self) -> RuntimeSource:
        _, cudart = cuda_runtime()
        library = self.library()
        frontend = find_file(FRONTEND, "cudnn_frontend.h").parent
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / "cudnn_module.cc",
            plan_version=1,
            library_version=self.version(),
            includes=(*cuda_includes(), self.header().parent, frontend),
            links=(library, cudart),
            shared=(SHARED,),
            beside=((LIBRARY, library), ("libcudart.so.13", cudart)),
        )

    def formats(self, instance: ToolchainInstance) -> tuple[str, ...]:
        return FORMATS

    def supports(self, graph: DataflowGraph, index: int, instance: ToolchainInstance) -> str | None:
        from collage_engine.toolchains.cudnn.rules import reason_against

        return reason_against(graph, index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
        from collage_engine.toolchains.cudnn.rules import partition_spec

        return partition_spec(self, instance, graph)

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        from collage_engine.toolchains.cudnn.generate import plan_of

        return plan_of(
            function.graph, function.nodes, function.inputs, function.outputs, function.constant,
            formats={**function.takes, **function.gives},
            strict=function.instance.precision == "float32",
        )  # fmt: skip

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """libcudnn.so.9 opens the libraries of its engines by name: they lie beside it."""
        folder = self.library().parent
        libraries = [
            RuntimeLibrary(
                file=str(path),
                name=path.name,
                toolchain=self.name,
                version=self.version(),
                licence=self.licence,
            )
            for path in sorted(folder.glob("libcudnn*.so.9"))
        ]
        return (*libraries, cudart_library(self.name), self.own_library())
