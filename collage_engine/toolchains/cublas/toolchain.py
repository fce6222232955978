"""cuBLASLt: matrix products on NVIDIA devices with fused epilogues."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from collage_engine.records.toolchain import RuntimeLibrary, ToolchainInstance
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.native.builder import RuntimeSource
from collage_engine.toolchains.native.cuda import (
    LICENCE,
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
    from collage_engine.model.index_set import IndexSet
    from collage_engine.partition.spec import PartitionSpec

WHEELS = ("nvidia-cublas", "nvidia-cublas-cu13")
LIBRARY = "libcublasLt.so.13"


class CublasToolchain(CudaToolchain):
    """cuBLASLt with bias, ReLU, GELU and residual sums as epilogues; algorithms chosen by time."""

    name = "cublas"
    licence = LICENCE
    install = "pip install 'collage-explorer[cuda]'"
    depends = ("collage_engine.partition.patterns",)

    def version(self) -> str:
        header = self.header().with_name("cublas_api.h")
        return version_of(WHEELS, header, "CUBLAS_VER_", ("MAJOR", "MINOR", "PATCH"))

    def header(self) -> Path:
        return find_file(WHEELS, "cublasLt.h")

    def library(self) -> Path:
        return find_file(WHEELS, LIBRARY)

    def source(self) -> RuntimeSource:
        _, cudart = cuda_runtime()
        library = self.library()
        return RuntimeSource(
            toolchain=self.name,
            main=Path(__file__).parent / "src" / "cublas_module.cc",
            plan_version=1,
            library_version=self.version(),
            includes=(*cuda_includes(), self.header().parent),
            links=(library, cudart),
            shared=(SHARED,),
            beside=((LIBRARY, library), ("libcudart.so.13", cudart)),
        )

    def supports(self, graph: DataflowGraph, index: int, instance: ToolchainInstance) -> str | None:
        from collage_engine.toolchains.cublas.rules import reason_against

        return reason_against(graph, index)

    def partition_spec(self, instance: ToolchainInstance, graph: DataflowGraph) -> PartitionSpec:
        from collage_engine.toolchains.cublas.rules import partition_spec

        return partition_spec(self, instance, graph)

    def made_of(
        self, graph: DataflowGraph, instance: ToolchainInstance, nodes: IndexSet
    ) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
        """What only goes along with a product is no candidate without one."""
        from collage_engine.toolchains.cublas.rules import refused

        return () if refused(graph, nodes) is None else None

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        from collage_engine.toolchains.cublas.products import plan_of

        return plan_of(
            function.graph, function.nodes, function.inputs, function.outputs, function.constant,
            function.instance.precision,
        )  # fmt: skip

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        library = RuntimeLibrary(
            file=str(self.library()), name=LIBRARY, toolchain=self.name, version=self.version(),
            licence=self.licence,
        )  # fmt: skip
        return library, cudart_library(self.name), self.own_library()
