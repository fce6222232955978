"""Runs Intel's MKL from its wheels, an optional extra, by the runtime of any other BLAS."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from collage_engine.records.toolchain import ToolchainAbout
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.blas.toolchain import BlasToolchain
from collage_engine.toolchains.runtime.builder import find_in_wheel

PACKAGE = "mkl"
HEADERS = "mkl-include"


class MklToolchain(BlasToolchain):
    """MKL is used without its threads: the runtime shares a product among threads itself."""

    about = ToolchainAbout(
        name="mkl",
        title="MKL",
        licence="LicenseRef-Intel-Simplified",
        environment={"MKL_THREADING_LAYER": "SEQUENTIAL", "MKL_NUM_THREADS": "1"},
        own_threads=False,
        install=f"pip install {PACKAGE} {HEADERS}",
        colour="#883824",
        letters="MK",
        pattern="sparse",
    )
    package = PACKAGE
    header = (HEADERS, "mkl_cblas.h", "")

    def _libraries(self) -> tuple[Path, ...]:
        """Return the entry library first.

        It opens the others, without threads, from its own folder.
        """
        self.version()
        files = importlib.metadata.files(PACKAGE) or []
        wanted = ("rt", "core", "intel_lp64", "sequential", "def", "avx2", "avx512", "avx10")
        libraries = []
        for part in wanted:
            name = next((f.name for f in files if f.name.startswith(f"libmkl_{part}.so")), None)
            if name is not None:
                libraries.append(find_in_wheel(PACKAGE, name))
        if not libraries or not libraries[0].name.startswith("libmkl_rt."):
            raise ToolchainError(f"the package {PACKAGE} carries no libmkl_rt.so")
        return tuple(libraries)
