"""Reading an ONNX file: every way it can be broken gets one clear sentence."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, external_data_helper, numpy_helper

from collage_engine.records.errors import ModelError, UsageError

_LENGTH_DELIMITED = 2
"""Protobuf's wire type of strings and messages."""
_GRAPH_FIELD = 7
"""Number of ``ModelProto.graph`` in onnx.proto."""


def read_model(path: str | Path) -> tuple[ModelProto, str]:
    """Read an ONNX file and the weights that lie beside it.

    Returns:
        The model with all its weights, and the SHA-256 of the file itself in hexadecimal.

    Raises:
        UsageError: There is no such file.
        ModelError: It is no ONNX model, is truncated, or names weights that are missing.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder, not an ONNX file.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    model = parse_model(data, str(path))
    _load_external(model, path)
    return model, hashlib.sha256(data).hexdigest()


def parse_model(data: bytes, path: str) -> ModelProto:
    """A ``ModelProto`` from a file's bytes; ``path`` is for the messages."""
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
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7


def _is_truncated(data: bytes) -> bool:
    """Whether the top-level fields look like a ``ModelProto`` that stops too early."""
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
    return place > len(data) or (1 in seen and _GRAPH_FIELD not in seen)


def tensors_of(model: ModelProto) -> list[TensorProto]:
    """Initializers and the tensors that Constant nodes hold."""
    found = list(model.graph.initializer)
    found += [a.t for n in model.graph.node for a in n.attribute if a.HasField("t")]
    return found


def _load_external(model: ModelProto, path: Path) -> None:
    for tensor in tensors_of(model):
        if not external_data_helper.uses_external_data(tensor):
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        location = place.get("location", "")
        relative = Path(location)
        if not location or relative.is_absolute() or ".." in relative.parts:
            raise ModelError(
                f"{path}: the tensor '{tensor.name}' keeps its data at '{location}', which is not "
                "a file beside the model."
            )
        file = path.parent / relative
        if not file.is_file():
            raise ModelError(
                f"{path} keeps its weights in '{location}' (tensor '{tensor.name}'), which is "
                f"missing: put it into {path.parent}."
            )
        end = int(place.get("offset", 0)) + int(place.get("length", 0))
        if file.stat().st_size < end:
            raise ModelError(
                f"{file} is truncated: the tensor '{tensor.name}' ends at byte {end}, the file at "
                f"{file.stat().st_size}."
            )
        try:
            external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise ModelError(f"{file} cannot be read: {error}.") from None
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def tensor_array(tensor: TensorProto, where: str) -> np.ndarray:
    """The tensor's values; ``where`` names it in the message when they do not fit its shape."""
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{where} is broken: {error}.") from None
