"""Packages that a library imports wherever they are installed, and how it does without them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from collage_engine.machine.loader.run_artifact import hidden


def import_tvm_without_torch() -> None:
    """Let this process's first import of TVM's interface leave PyTorch alone.

    ``tvm_ffi`` and a module of ``tvm.relax`` import ``torch`` wherever it is installed, for
    conversions that nobody here asks for. That takes some seconds and 180 MB in every process that
    loads a placement, brings a second pool of threads, and counts in the memory that a placement is
    said to take. A toolchain may still import it later.
    """
    sys.meta_path.insert(0, _WithoutTorch())


class _WithoutTorch(MetaPathFinder):
    """Finds TVM's modules that import PyTorch where Python does, and executes them without it."""

    MODULES = ("tvm_ffi", "tvm.relax.base_py_module")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.MODULES or sys.modules.get("torch") is not None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def without_torch(module: ModuleType) -> None:
                with hidden("torch"):
                    execute(module)

            spec.loader.exec_module = without_torch  # type: ignore[method-assign]
        return spec
