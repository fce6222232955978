"""Collage Explorer's engine: which toolchain should run which part of a model.

It is used from Python as ``import collage_engine as collage``. What it offers stands in
``collage_engine.api``, which is imported at the first use: every child process of the engine
imports this package. No toolchain is loaded before an artifact is.

Example:
    >>> import collage_engine as collage
    >>> placed = collage.place("model.onnx", threads=1, budget="2m")
    >>> placed.export("out")
    >>> model = collage.load("out")
    >>> outputs = model.run(None, {"input": array})
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from collage_engine.records.versions import __version__ as __version__

if TYPE_CHECKING:
    from collage_engine.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and name in _offered():
        return getattr(import_module(f"{__name__}.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_offered()})


def _offered() -> list[str]:
    """Return the public names, of which ``api`` has the list."""
    offered: list[str] = import_module(f"{__name__}.api").__all__
    return offered
