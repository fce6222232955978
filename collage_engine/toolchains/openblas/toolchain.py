"""Runs OpenBLAS from the wheel scipy-openblas32, whose symbols have the prefix scipy_."""

from __future__ import annotations

from pathlib import Path

from collage_engine.records.toolchain import ToolchainAbout
from collage_engine.toolchains.blas.toolchain import BlasToolchain
from collage_engine.toolchains.runtime.builder import find_in_wheel

PACKAGE = "scipy-openblas32"


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
    package = PACKAGE
    header = (PACKAGE, "cblas.h", "include")

    def _libraries(self) -> tuple[Path, ...]:
        """Return OpenBLAS, then what its wheel brings along for it (the Fortran runtime)."""
        library = find_in_wheel(PACKAGE, "libscipy_openblas.so")
        others = [p for p in library.parent.iterdir() if ".so" in p.name and p != library]
        return (library, *sorted(others))

    def licence_of(self, name: str) -> str:
        """Return the licence of a library of the wheel, as the wheel's LICENSE.txt says it."""
        if name.startswith("libgfortran"):
            return "GPL-3.0-or-later WITH GCC-exception-3.1"
        if name.startswith("libquadmath"):
            return "LGPL-2.1-or-later"
        return self.about.licence
