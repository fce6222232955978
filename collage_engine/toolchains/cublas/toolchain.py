"""Runs matrix products with fused epilogues on NVIDIA devices, by cuBLASLt."""

from __future__ import annotations

from pathlib import Path

from collage_engine.machine.cuda import generation
from collage_engine.records.precision import BFLOAT16, FLOAT16, TF32
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainAbout
from collage_engine.toolchains.runtime.builder import RuntimeSource
from collage_engine.toolchains.runtime.cuda import (
    FIRST_TF32,
    LICENCE,
    CudaToolchain,
    cudart_library,
    find_file,
    version_of,
)

FIRST_HALF = 70
"""Architecture (Volta) whose tensor cores first took float16 (CUDA C++ Programming Guide, compute
capabilities)."""


class CublasToolchain(CudaToolchain):
    """cuBLASLt with bias, ReLU, GELU and residual sums as epilogues; algorithms chosen by time."""

    about = ToolchainAbout(
        name="cublas",
        title="cuBLAS",
        licence=LICENCE,
        targets=("cuda",),
        install="pip install 'collage-explorer[cuda]'",
        colour="#cc79a7",
        letters="CB",
        pattern="grid",
    )
    depends = ("collage_engine.partition.patterns",)
    wheels = ("nvidia-cublas", "nvidia-cublas-cu13")
    library_name = "libcublasLt.so.13"
    choice = "algorithm"

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        header = self.header().with_name("cublas_api.h")
        return version_of(self.wheels, header, "CUBLAS_VER_")

    def header(self) -> Path:
        """Return the library's main header."""
        return find_file(self.wheels, "cublasLt.h")

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        main = Path(__file__).parent / "src" / "cublas_module.cc"
        return self.runtime_source(main, self.header().with_name("cublas_api.h"))

    def rounds_to(self, architecture: str, precision: str) -> str | None:
        """Return the precision to which float32 operands are rounded inside a product.

        cuBLASLt rounds to whichever precision a run admits, where the device computes in it.
        """
        first = {TF32: FIRST_TF32, BFLOAT16: FIRST_TF32, FLOAT16: FIRST_HALF}.get(precision)
        return precision if first and generation(architecture) >= first else None

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        library = self.carried(self.library(), name=self.library_name)
        return library, cudart_library(self.name), self.own_library()
