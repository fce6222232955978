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
from collage_engine.records.errors import ModelError, UsageError
from collage_engine.records.files import SpecialFileError, open_regular
from collage_engine.records.reasons import short_reason

_LENGTH_DELIMITED = 2
"""Protobuf's wire type of strings and messages."""
_GRAPH_FIELD = 7
"""The number of the field ``ModelProto.graph`` (onnx.proto)."""
_VARINT_BYTES = 10
"""Bytes of protobuf's longest number: 64 bits, 7 of them in each byte."""
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
    except SpecialFileError as error:
        if path.is_dir():
            raise UsageError(f"{path} is a folder, not an ONNX file.") from None
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
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
        if _is_truncated(data):
            raise ModelError(
                f"{path} is truncated: it ends in the middle of the model. Copy it again."
            ) from None
        raise ModelError(f"{path} is not an ONNX file.") from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        if _is_truncated(data):
            raise ModelError(f"{path} is truncated: the graph is missing. Copy it again.")
        raise ModelError(f"{path} is not an ONNX model: it holds no graph.")
    return model


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number at a place and the place after it; ``ValueError`` where it is too long."""
    value = 0
    for count in range(_VARINT_BYTES):
        byte = data[place + count]
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value, place + count + 1
    raise ValueError("no number of protobuf's is that long")


def _is_truncated(data: bytes) -> bool:
    """Return whether the top-level fields look like a ``ModelProto`` that stops too early."""
    place = 0
    seen = set()
    try:
        while place < len(data):
            tag, place = _varint(data, place)
            field, wire = tag >> 3, tag & 7
            if not (1 <= field <= 8 or field in (14, 20, 25, 26)) or wire not in (0, 2):
                return False
            seen.add(field)
            value, place = _varint(data, place)
            if wire == _LENGTH_DELIMITED:
                place += value
    except IndexError:
        return True
    except ValueError:
        return False
    return place > len(data) or (1 in seen and _GRAPH_FIELD not in seen)


def tensor_array(tensor: TensorProto, where: str) -> np.ndarray:
    """Return the tensor's values.

    ``where`` names it in the message when they do not fit its shape.
    """
    try:
        return mapped_array(tensor) if is_mapped(tensor) else numpy_helper.to_array(tensor)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{where} is broken: {short_reason(error)}.") from None
