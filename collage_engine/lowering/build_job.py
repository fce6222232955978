"""Builds covers in a child process: a toolchain that crashes costs one cover, not the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.built import BuiltModule
from collage_engine.records.candidate import Candidate

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel


class BuildCover(msgspec.Struct, frozen=True, kw_only=True):
    """Build a cover of a model file into a fresh folder."""

    model: str
    shapes: dict[str, tuple[int, ...]]
    cover: tuple[Candidate, ...]
    spin: bool | None
    folder: str
    sha256: str
    """Of the model file as it must be."""


class BuildJob:
    """The child's state: the model it imported last."""

    def __init__(self) -> None:
        self._key: tuple[str, str] | None = None
        self._model: ImportedModel | None = None

    def __call__(self, request: BuildCover) -> BuiltModule:
        """Import the model, then build and export the cover; what was built."""
        from collage_engine.lowering.reference import run_onnx
        from collage_engine.model.importer import import_model

        key = (request.sha256, repr(sorted(request.shapes.items())))
        if self._model is None or key != self._key:
            self._model = import_model(
                request.model, dict(request.shapes), request.sha256, run_onnx
            )
            self._key = key
        built = build_cover(self._model, request.cover, request.spin)
        return write_module(built, Path(request.folder), link=True)
