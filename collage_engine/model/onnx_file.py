"""Reads an ONNX file: every way in which it can be broken gets one clear sentence."""

from __future__ import annotations

import hashlib
import os
import re
from itertools import starmap
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import (
    ModelProto,
    TensorProto,
    helper,
    numpy_helper,
)
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from collage_engine.model.onnx_external import (
    every_tensor,
    is_mapped,
    load_external_data,
    mapped_array,
)
from collage_engine.model.onnx_outer_values import branches, with_branches
from collage_engine.support.errors import ModelError, UsageError, short_reason
from collage_engine.support.files import open_regular

_STANDARD = ("", "ai.onnx")
"""Names of the standard's own domain in files."""
_LARGEST_FILE = (1 << 31) - 1
"""Bytes of the largest message that protobuf can read."""


def read_model(path: str | Path) -> tuple[ModelProto, str]:
    """Read an ONNX file and the weights that lie beside it.

    Returns:
        The model with all its weights (large ones by their place in a file, see
        ``mapped_weights``), and the SHA-256 of the file itself in hexadecimal.

    Raises:
        UsageError: There is no such file, or it is a folder, a pipe or a device.
        ModelError: It is no ONNX model, is truncated, or names weights that are missing.
    """
    path = Path(path)
    data = read_bytes(path)
    model = parse_model(data, str(path))
    # It belongs to training; what is not read need not be checked.
    del model.training_info[:]
    load_external_data(model, path)
    write_plainly(model, str(path))
    return model, hashlib.sha256(data).hexdigest()


def read_without_weights(path: str | Path) -> ModelProto:
    """Read an ONNX file alone, for what its graph says; weights beside it stay where they are.

    Raises:
        UsageError: There is no such file, or it is a folder, a pipe or a device.
        ModelError: It is no ONNX model, or is truncated.
    """
    model = parse_model(read_bytes(Path(path)), str(path))
    write_plainly(model, str(path))
    return model


def files_beside(path: Path) -> list[str]:
    """Return the names of the files beside a model that hold its weights."""
    tensors = every_tensor(read_without_weights(path))
    return sorted({ExternalDataInfo(t).location for t in tensors if uses_external_data(t)})


def read_bytes(path: Path) -> bytes:
    """Return the bytes of an ONNX file.

    Raises:
        UsageError: There is no such file, or it is a folder, a pipe or a device.
        ModelError: It is larger than an ONNX file can be.
    """
    try:
        with open_regular(path) as stream:
            if os.fstat(stream.fileno()).st_size > _LARGEST_FILE:
                raise ModelError(
                    f"{path} is larger than 2 GiB, which is more than ONNX files can hold: save "
                    "the model with its weights as external data."
                )
            return stream.read()
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # a name that no file can have
        raise UsageError(f"{path!r} cannot be read: {error}.") from None


def parse_model(data: bytes, path: str) -> ModelProto:
    """Return a ``ModelProto`` from a file's bytes; ``path`` is for the messages."""
    if not data:
        raise ModelError(f"{path} is empty, not an ONNX file.")
    if data.startswith(b"version https://git-lfs"):
        raise ModelError(f"{path} is a Git LFS pointer, not the model: run 'git lfs pull'.")
    if data.startswith(b"SQLite format 3\0"):
        raise ModelError(f"{path} is a session, not the model: give the ONNX file.")
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError:
        model = ModelProto()
    if not (model.graph.node or model.graph.output):
        raise ModelError(f"{path} is not an ONNX file, or only a part of one: copy it again.")
    return model


def tensor_array(tensor: TensorProto, where: str) -> np.ndarray:
    """Return the tensor's values.

    ``where`` names it in the message when they do not fit its shape.
    """
    try:
        return mapped_array(tensor) if is_mapped(tensor) else numpy_helper.to_array(tensor)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{where} is broken: {short_reason(error)}.") from None


def write_plainly(model: ModelProto, path: str) -> None:
    """Write what the standard lets a file say in two ways in one of them, in place.

    The standard's own domain is ``""``, never ``ai.onnx``; a size has a name only where it says
    something: PaddlePaddle's exporter calls every open size ``?``.

    Args:
        model: The model, with or without its weights.
        path: Its file, for messages.

    Raises:
        ModelError: Two versions of the standard's operator set are imported, of which runtimes take
            the first or the last.
    """
    for part in (model, *model.functions):
        imports = {each.domain: each.version for each in part.opset_import}
        versions = {each.version for each in part.opset_import if each.domain in _STANDARD}
        if len(versions) > 1:
            raise ModelError(
                f"{path} imports the standard's operator set in several versions "
                f"({', '.join(map(str, sorted(versions)))}): keep the one that it was written for."
            )
        if "ai.onnx" in imports:
            del part.opset_import[:]
            imports[""] = imports.pop("ai.onnx")
            part.opset_import.extend(starmap(helper.make_opsetid, imports.items()))
    bodies = [node for function in model.functions for node in function.node]
    nodes = list(with_branches((*model.graph.node, *bodies)))
    for named in (*nodes, *model.functions):
        if named.domain in _STANDARD:
            named.domain = ""
    for graph in (model.graph, *branches(nodes)):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.HasField("dim_param") and not _names_a_size(dim.dim_param):
                    dim.ClearField("dim_param")


def _names_a_size(name: str) -> bool:
    """Tell whether a size's name can tell it from others: not ``?``, ``-1``, or ``None``."""
    return name != "None" and re.fullmatch(r"[^?]*[^\W\d?][^?]*", name) is not None
