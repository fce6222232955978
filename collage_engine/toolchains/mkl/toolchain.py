"""Runs Intel's MKL from its wheels, an optional extra, by the runtime of any other BLAS."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import RuntimeLibrary, ToolchainAbout
from collage_engine.toolchains import blas
from collage_engine.toolchains.blas.toolchain import PLAN_VERSION, BlasToolchain
from collage_engine.toolchains.runtime.builder import RuntimeSource, find_in_wheel, wheel_version

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

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        return wheel_version(PACKAGE)

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        entry = self._libraries()[0]
        return RuntimeSource(
            toolchain=self.name,
            main=Path(blas.__file__).parent / "src" / "mkl_module.cc",
            plan_version=PLAN_VERSION,
            library_version=self.version(),
            includes=(find_in_wheel(HEADERS, "mkl_cblas.h").parent,),
            links=(entry,),
            beside=tuple((file.name, file) for file in self._libraries()),
        )

    def _libraries(self) -> tuple[Path, ...]:
        """Return the entry library first.

        It opens the others, without threads, from its own folder.
        """
        self.version()
        files = importlib.metadata.files(PACKAGE) or []
        wanted = ("rt", "core", "intel_lp64", "sequential", "def", "avx2", "avx512", "avx10")
        found = []
        for part in wanted:
            name = next((f.name for f in files if f.name.startswith(f"libmkl_{part}.so")), None)
            if name is not None:
                found.append(find_in_wheel(PACKAGE, name))
        if not found or not found[0].name.startswith("libmkl_rt."):
            raise ToolchainError(f"the package {PACKAGE} carries no libmkl_rt.so")
        return tuple(found)

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        libraries = (
            RuntimeLibrary(
                file=str(file),
                name=file.name,
                toolchain=self.name,
                version=self.version(),
                licence=self.about.licence,
            )
            for file in self._libraries()
        )
        return (*libraries, self.own_library())
