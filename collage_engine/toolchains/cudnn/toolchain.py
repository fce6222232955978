"""cuDNN's graph API: convolutions and what follows them on NVIDIA devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collage_engine.records.format import FORMATS
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainInstance
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.native.builder import RuntimeSource
from collage_engine.toolchains.native.cuda import (
    RuledCudaToolchain,
    cudart_library,
    find_file,
    version_of,
)

FRONTEND = ("nvidia-cudnn-frontend",)


class CudnnToolchain(RuledCudaToolchain):
    """cuDNN 9; of the engines that its heuristics offer, the fastest as measured."""

    name = "cudnn"
    licence = "LicenseRef-NVIDIA-cuDNN"
    install = "pip install 'collage-explorer[cuda]'"
    depends = (
        "collage_engine.partition.quantized", "collage_engine.partition.quantized_numbers",
        "collage_engine.partition.patterns",
    )  # fmt: skip
    wheels = ("nvidia-cudnn-cu13",)
    library_name = "libcudnn.so.9"

    def version(self) -> str:
        header = self.header().with_name("cudnn_version.h")
        return version_of(self.wheels, header, "CUDNN_", ("MAJOR", "MINOR", "PATCHLEVEL"))

    def header(self) -> Path:
        return find_file(self.wheels, "cudnn.h")

    def source(self) -> RuntimeSource:
        main = Path(__file__).parent / "src" / "cudnn_module.cc"
        frontend = find_file(FRONTEND, "cudnn_frontend.h").parent
        return self.runtime_source(main, self.header().parent, frontend)

    def formats(self, instance: ToolchainInstance) -> tuple[str, ...]:
        return FORMATS

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
        libraries = [self.carried(path) for path in sorted(folder.glob("libcudnn*.so.9"))]
        return (*libraries, cudart_library(self.name), self.own_library())
