"""Runs OpenBLAS from the wheel scipy-openblas32, whose symbols have the prefix scipy_."""

from __future__ import annotations

from pathlib import Path

from collage_engine.records.toolchain import RuntimeLibrary, ToolchainAbout
from collage_engine.toolchains import blas
from collage_engine.toolchains.blas.toolchain import PLAN_VERSION, BlasToolchain
from collage_engine.toolchains.runtime.builder import RuntimeSource, find_in_wheel, wheel_version

PACKAGE = "scipy-openblas32"
LIBRARY = "libscipy_openblas.so"


class OpenBlasToolchain(BlasToolchain):
    """OpenBLAS's own threads stay off: the runtime shares a product among threads itself."""

    about = ToolchainAbout(
        name="openblas",
        title="OpenBLAS",
        licence="BSD-3-Clause",
        environment={"OPENBLAS_NUM_THREADS": "1"},
        own_threads=False,
        install=f"pip install {PACKAGE}",
        colour="#f0e442",
        letters="OB",
        pattern="upright",
    )

    def version(self) -> str:
        """Return the version of the library that is installed here."""
        return wheel_version(PACKAGE)

    def source(self) -> RuntimeSource:
        """Return the sources of its C++ runtime, and the libraries that it links."""
        library = find_in_wheel(PACKAGE, LIBRARY)
        return RuntimeSource(
            toolchain=self.name,
            main=Path(blas.__file__).parent / "src" / "openblas_module.cc",
            plan_version=PLAN_VERSION,
            library_version=self.version(),
            includes=(find_in_wheel(PACKAGE, "cblas.h", "include").parent,),
            links=(library,),
            beside=tuple((file.name, file) for file in self._libraries()),
        )

    def _libraries(self) -> tuple[Path, ...]:
        """Returns OpenBLAS, then what its wheel brings along for it (the Fortran runtime)."""
        library = find_in_wheel(PACKAGE, LIBRARY)
        others = [p for p in library.parent.iterdir() if ".so" in p.name and p != library]
        return (library, *sorted(others))

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        return (
            *(
                RuntimeLibrary(
                    file=str(file),
                    name=file.name,
                    toolchain=self.name,
                    version=self.version(),
                    licence=_licence(file.name),
                )
                for file in self._libraries()
            ),
            self.own_library(),
        )


def _licence(name: str) -> str:
    """Returns the licence of a library of the wheel, as the wheel's LICENSE.txt says it."""
    if name.startswith("libgfortran"):
        return "GPL-3.0-or-later WITH GCC-exception-3.1"
    if name.startswith("libquadmath"):
        return "LGPL-2.1-or-later"
    return OpenBlasToolchain.about.licence
