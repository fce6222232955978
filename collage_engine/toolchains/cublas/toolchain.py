"""Runs matrix products with fused epilogues on NVIDIA devices, by cuBLASLt."""

from __future__ import annotations

from pathlib import Path

from collage_engine.machine.cuda import generation
from collage_engine.records.precision import BFLOAT16, FLOAT16, TF32
from collage_engine.records.toolchain import ToolchainAbout
from collage_engine.toolchains.cublas.rules import DIALECT
from collage_engine.toolchains.runtime.builder import RuntimeSource
from collage_engine.toolchains.runtime.cuda import FIRST_TF32, LICENCE, CudaToolchain

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
    dialect = DIALECT
    wheels = ("nvidia-cublas", "nvidia-cublas-cu13")
    library_name = "libcublasLt.so.13"
    version_header, version_macros = "cublas_api.h", ("CUBLAS_VER_", "PATCH")
    choice = "algorithm"

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        return self.runtime_source(Path(__file__).parent / "src" / "cublas_module.cc")

    def rounds_to(self, architecture: str, precision: str) -> str | None:
        """Return the precision to which float32 operands are rounded inside a product.

        cuBLASLt rounds to whichever precision a run admits, where the device computes in it.
        """
        first = {TF32: FIRST_TF32, BFLOAT16: FIRST_TF32, FLOAT16: FIRST_HALF}.get(precision)
        return precision if first and generation(architecture) >= first else None
