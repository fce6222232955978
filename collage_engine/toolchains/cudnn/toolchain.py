"""Runs convolutions with what follows them, and attention, on NVIDIA devices, by cuDNN's graphs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from collage_engine.records.toolchain import RuntimeLibrary, ToolchainAbout
from collage_engine.toolchains.cudnn.rules import DIALECT
from collage_engine.toolchains.runtime.builder import RuntimeSource
from collage_engine.toolchains.runtime.cuda import (
    LICENCE,
    CudaToolchain,
    cudart_library,
    find_file,
    nvrtc,
)

FRONTEND = ("nvidia-cudnn-frontend",)
"""Packages that hold the headers of cuDNN's C++ front end."""


class CudnnToolchain(CudaToolchain):
    """cuDNN 9; of the engines that its heuristics offer, the fastest as measured."""

    about = ToolchainAbout(
        name="cudnn",
        title="cuDNN",
        licence="LicenseRef-NVIDIA-cuDNN",
        targets=("cuda",),
        install="pip install 'collage-explorer[cuda]'",
        colour="#d55e00",
        letters="CD",
        pattern="cross",
    )
    depends = ("collage_engine.partition.patterns",)
    dialect = DIALECT
    wheels = ("nvidia-cudnn-cu13",)
    library_name = "libcudnn.so.9"
    version_header, version_macros = "cudnn_version.h", ("CUDNN_", "PATCHLEVEL")
    choice = "engine"

    def headers(self) -> list[Path]:
        """Return the library's header, and that of its C++ front end."""
        return [*super().headers(), find_file(FRONTEND, "cudnn_frontend_version.h")]

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        source = self.runtime_source(Path(__file__).parent / "src" / "cudnn_module.cc")
        beside = {name: file for name, file in source.beside}
        beside.update((file.name, file) for file in (*self.parts(), *nvrtc()))
        return replace(source, beside=tuple(beside.items()))

    def parts(self) -> list[Path]:
        """Return libcudnn.so.9 and the libraries of its engines.

        libcudnn.so.9 opens them by name, and ends the process where they do not lie beside it.
        """
        return sorted(self.library().parent.glob("libcudnn*.so.9"))

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        libraries = [self.carried(path) for path in self.parts()]
        compiler = [self.carried(path, licence=LICENCE) for path in nvrtc()]
        return (*libraries, *compiler, cudart_library(self.name), self.own_library())
