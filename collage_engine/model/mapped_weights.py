"""Maps weights of large models from the files beside the model, in which they stay.

A model of gigabytes is opened without a copy of its weights: its tensors name the file, the first
byte and the length of their data, as ONNX's external data does, only that the file has its full
path. Everybody who wants values gets them through ``mapped_array``, whose pages the system reads
when they are touched, shares among processes and drops when memory is short.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper

MAPPED_FROM_BYTES = checker.MAXIMUM_PROTOBUF // 2
"""Bytes of weights in files beside a model from which on they are mapped; below they are read, and
half of what protobuf can hold leaves room for weights that clean-up changes."""
VARIABLE = "COLLAGE_MAPPED_WEIGHTS_FROM"
"""Environment variable with another number of bytes, which every process of a run obeys."""
LEAST_BYTES = mmap.PAGESIZE
"""Bytes of a tensor from which on it is mapped; smaller ones are read, since many small values are
looked at when a model is cleaned."""
ALIGNMENT = 64
"""Bytes to which a tensor's first byte must be aligned to be used where it is mapped: what TVM
asserts of the tensors that its kernels read."""
MAPPED_TYPES = frozenset(
    (
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16),
        *(TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16),
        *(TensorProto.INT32, TensorProto.UINT32, TensorProto.INT64, TensorProto.UINT64),
    )
)
"""Element types of whole bytes, whose files can be read as they lie."""


@dataclass(frozen=True)
class Place:
    """The place of a tensor's data in a file."""

    file: Path
    offset: int
    length: int


def mapped_from_bytes() -> int:
    """Return the bytes of weights beside a model from which on they are mapped."""
    return int(os.environ.get(VARIABLE) or MAPPED_FROM_BYTES)


def keep_in_file(tensor: TensorProto, place: Place) -> None:
    """Have a tensor name its data's place instead of holding the data."""
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    fields = (("location", str(place.file)), ("offset", place.offset), ("length", place.length))
    for key, value in fields:
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    tensor.data_location = TensorProto.EXTERNAL


def is_mapped(tensor: TensorProto) -> bool:
    """Tell whether a tensor's data lies in a file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def place_of(tensor: TensorProto) -> Place:
    """Return the place of a mapped tensor's data."""
    fields = {entry.key: entry.value for entry in tensor.external_data}
    return Place(Path(fields["location"]), int(fields["offset"]), int(fields["length"]))


def data_bytes(tensor: TensorProto) -> int:
    """Return the bytes of a weight's data, in the tensor or in a file."""
    return place_of(tensor).length if is_mapped(tensor) else len(tensor.raw_data)


def mapped_array(tensor: TensorProto) -> np.ndarray:
    """Return a mapped tensor's values; what is written to them stays in this process.

    Raises:
        OSError: The file is gone.
        ValueError: It has become too short.
    """
    place = place_of(tensor)
    about = place.file.stat()
    data = _mapped_file(str(place.file), about.st_size, about.st_mtime_ns)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    values: np.ndarray = data[place.offset : place.offset + place.length].view(dtype)
    return values.reshape(tuple(tensor.dims))


@lru_cache(maxsize=16)
def _mapped_file(path: str, size: int, changed_ns: int) -> np.ndarray:
    """Maps a whole file once in a process; privately, as TVM takes no read-only memory."""
    data: np.ndarray = np.memmap(path, np.uint8, "c").view(np.ndarray)
    if len(data) != size:
        raise ValueError(f"{path} changes while it is read")
    return data


def mapped_weights(tensors: Iterable[TensorProto]) -> dict[str, np.ndarray]:
    """Return the values of those of the tensors that are mapped, by name."""
    return {tensor.name: mapped_array(tensor) for tensor in tensors if is_mapped(tensor)}


def with_own_weights(model: ModelProto) -> ModelProto:
    """Return the model with all weights in it, for who knows no files; as it is if none is mapped.

    Raises:
        ValueError: They are more than a model can hold.
    """
    if not any(map(is_mapped, model.graph.initializer)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if is_mapped(tensor):
            tensor.raw_data = mapped_array(tensor).tobytes()
            del tensor.external_data[:]
            tensor.data_location = TensorProto.DEFAULT
    if copy.ByteSize() >= 1 << 31:
        raise ValueError(f"the model is {copy.ByteSize() / 1e9:.1f} GB, and 2 GB is the limit")
    return copy


def name_files(model: ModelProto) -> dict[str, Path]:
    """Have a model's mapped tensors name their files without folders, in place.

    Returns:
        The files by the names that the model uses now, which differ.
    """
    names: dict[Path, str] = {}
    for tensor in model.graph.initializer:
        if not is_mapped(tensor):
            continue
        place = place_of(tensor)
        name = names.setdefault(place.file, _file_name(place.file))
        keep_in_file(tensor, Place(Path(name), place.offset, place.length))
    return {name: file for file, name in names.items()}


def _file_name(file: Path) -> str:
    """Returns a name for a file of weights, which no other has and which tells no folder."""
    import hashlib

    about = file.stat()
    seen = f"{file}\0{about.st_size}\0{about.st_mtime_ns}"
    return f"weights-{hashlib.sha256(seen.encode()).hexdigest()[:16]}.bin"
