"""Reads an ONNX file: every way in which it can be broken gets one clear sentence."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, numpy_helper

from collage_engine.model.mapped_weights import is_mapped, mapped_array
from collage_engine.model.onnx_external import load_external_data
from collage_engine.support.errors import ModelError, UsageError
from collage_engine.support.files import open_regular
from collage_engine.support.reasons import short_reason

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
    data = _read(path)
    model = parse_model(data, str(path))
    # It belongs to training; what is not read need not be checked.
    del model.training_info[:]
    load_external_data(model, path)
    return model, hashlib.sha256(data).hexdigest()


def read_without_weights(path: str | Path) -> ModelProto:
    """Read an ONNX file alone, for what its graph says; weights beside it stay where they are.

    Raises:
        UsageError: There is no such file, or it is a folder, a pipe or a device.
        ModelError: It is no ONNX model, or is truncated.
    """
    return parse_model(_read(Path(path)), str(path))


def _read(path: Path) -> bytes:
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
