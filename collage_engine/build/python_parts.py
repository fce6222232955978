"""Python files that a module calls, run before it is loaded.

A toolchain whose C++ headers were not there when it was built runs through its Python interface;
what opens it lies beside ``model.so`` and registers itself when it is run.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from collage_engine.build.built import BUILT_FILE, BuiltModule
from collage_engine.records.typed import decode


def run_python_parts(module: str | Path | None) -> None:
    """Run the Python files that a module needs before it is loaded; most modules need none.

    Args:
        module: A ``model.so`` in a folder that ``build.build.write_module`` made; None: nothing is
            run.
    """
    if module is None:
        return
    about = Path(module).parent / BUILT_FILE
    if not about.is_file():
        return
    built = decode(about.read_bytes(), BuiltModule)
    for library in built.libraries:
        if library.python:
            runpy.run_path(str(about.parent / library.name), run_name="collage_python_part")
