"""Finds the files of a model: the ONNX file, and those beside it that hold its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from collage_engine.farm.messages import ModelFiles
from collage_engine.machine.worker import Worker
from collage_engine.records.errors import FarmError

_READER = "collage_engine.farm.model_files:external_files"
READ_LIMIT_S = 300.0
"""Seconds for finding out which files a model names; chosen."""


def model_files(
    path: str, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[ModelFiles, dict[str, Path]]:
    """Returns a model by content, and where its contents lie here, by SHA-256.

    Raises:
        FarmError: A file cannot be read.
    """
    place = Path(path)
    names = [place.name]
    if len(list(place.parent.iterdir())) > 1:
        # Reading it takes memory, and the file may be hostile: it is read in a child.
        with Worker(_READER, name="collage-files") as child:
            names += child.call(path, READ_LIMIT_S)
    files: dict[str, str] = {}
    contents: dict[str, Path] = {}
    try:
        for name in dict.fromkeys(names):
            with (place.parent / name).open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            files[name] = sha256
            contents[sha256] = place.parent / name
    except OSError as error:
        raise FarmError(f"{error.filename} cannot be read: {error.strerror}") from error
    return ModelFiles(name=place.name, files=files, shapes=dict(shapes)), contents


def external_files(path: str) -> list[str]:
    """Names of the files beside a model that hold tensors of it, relative to its folder."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    from collage_engine.model.onnx_external import every_tensor

    model = onnx.load(path, load_external_data=False)
    found = {
        ExternalDataInfo(tensor).location
        for tensor in every_tensor(model)
        if uses_external_data(tensor)
    }
    # A path that leads out of the folder is the importer's to refuse.
    return sorted(n for n in found if not Path(n).is_absolute() and ".." not in Path(n).parts)
