"""Finds weights that an ONNX file keeps in files beside it, and maps those of large models.

The main graph, the branches of If, Loop and Scan, and model-local functions may all hold tensors
whose data lies outside. All of them are read from the model's folder when the model is read, so
that nothing later looks for a file, whatever the working folder is.

A model of gigabytes is opened without a copy of its weights: its tensors name the file, the first
byte and the length of their data, as ONNX's external data does, only that the file has its full
path. Everybody who wants values gets them through ``mapped_array``, whose pages the system reads
when they are touched, shares among processes and drops when memory is short.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, checker, helper
from onnx.external_data_helper import (
    load_external_data_for_tensor,
    set_external_data,
    uses_external_data,
)

from collage_engine.model.onnx_outer_values import branches, with_branches
from collage_engine.support.errors import ModelError, displayable, first_line


def every_tensor(model: ModelProto) -> Iterator[TensorProto]:
    """Yield all tensors of a model: of its graph, of branches and functions, at any depth."""
    bodies = [node for function in model.functions for node in function.node]
    nodes = list(with_branches((*model.graph.node, *bodies)))
    for graph in (model.graph, *branches(nodes)):
        yield from graph.initializer
    defaults = (function.attribute_proto for function in model.functions)
    for attribute in chain(*defaults, *(node.attribute for node in nodes)):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors


def load_external_data(model: ModelProto, path: Path) -> None:
    """Make all tensors that lie in files beside the model at ``path`` usable, in place.

    They are read, unless all of them together are large: then the weights of the main graph stay
    in their files (``model.onnx_external``), and only what cannot be mapped is read.

    Raises:
        ModelError: A file is outside the model's folder, missing, or of another size than the
            tensor that names it.
    """
    outside = [tensor for tensor in every_tensor(model) if uses_external_data(tensor)]
    places = [_checked_place(tensor, path) for tensor in outside]
    stays: set[int] = set()
    mapped_from = int(os.environ.get(VARIABLE) or MAPPED_FROM_BYTES)
    if sum(location.length for location in places) >= mapped_from:
        stays = {id(tensor) for tensor in model.graph.initializer}
    for tensor, location in zip(outside, places, strict=True):
        fits = location.length >= LEAST_BYTES and location.offset % ALIGNMENT == 0
        if id(tensor) in stays and tensor.data_type in MAPPED_TYPES and fits:
            keep_in_file(tensor, Place(location.file.absolute(), location.offset, location.length))
        else:
            _load(tensor, location, path)


def _checked_place(tensor: TensorProto, path: Path) -> Place:
    """Return where a tensor of the model at ``path`` has its data.

    Raises:
        ModelError: The place is no range of a file in the model's folder or below it.
    """
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = fields.get("location", "")
    name = displayable(tensor.name)
    named = f"{path}: the tensor '{name}' keeps its data in '{displayable(location)}', "
    file = path.parent / location
    try:
        inside = file.resolve().is_relative_to(path.parent.resolve())
        if inside and not file.exists():
            raise ModelError(f"{named}which is missing: put it into {path.parent}.")
        if not inside or not file.is_file():
            raise ModelError(f"{named}which is no file in the model's folder.")
        size = file.stat().st_size
        offset = int(fields.get("offset") or 0)
        length = int(fields.get("length") or size - offset)
    except (OSError, RuntimeError, ValueError):  # no name of a file, links in a circle, no numbers
        raise ModelError(f"{named}and what it says of the place is not possible.") from None
    if offset < 0 or length < 0 or size < offset + length:
        raise ModelError(f"{named}which is truncated or of another model: it has {size} bytes.")
    return Place(file, offset, length)


def _load(tensor: TensorProto, stored: Place, path: Path) -> None:
    """Read a tensor's data into it."""
    tensor.raw_data = b""
    location = str(stored.file.relative_to(path.parent))
    set_external_data(tensor, location, stored.offset, stored.length)
    try:
        load_external_data_for_tensor(tensor, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"{stored.file} cannot be read: {displayable(first_line(str(error)))}."
        ) from None
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


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


def keep_in_file(tensor: TensorProto, location: Place) -> None:
    """Have a tensor name its data's place instead of holding the data."""
    tensor.raw_data = b""  # set_external_data insists on some
    set_external_data(tensor, str(location.file), location.offset, location.length)
    tensor.ClearField("raw_data")


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
    location = place_of(tensor)
    about = location.file.stat()
    data = _mapped_file(str(location.file), about.st_size, about.st_mtime_ns)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    values: np.ndarray = data[location.offset : location.offset + location.length].view(dtype)
    return values.reshape(tuple(tensor.dims))


@lru_cache(maxsize=16)
def _mapped_file(path: str, size: int, changed_ns: int) -> np.ndarray:
    """Map a whole file once in a process; privately, as TVM takes no read-only memory."""
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
    copy = deepcopy(model)
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
        location = place_of(tensor)
        name = names.setdefault(location.file, _file_name(location.file))
        keep_in_file(tensor, Place(Path(name), location.offset, location.length))
    return {name: file for file, name in names.items()}


def _file_name(file: Path) -> str:
    """Return a name for a file of weights, which no other has and which tells no folder."""
    import hashlib

    about = file.stat()
    seen = f"{file}\0{about.st_size}\0{about.st_mtime_ns}"
    return f"weights-{hashlib.sha256(seen.encode()).hexdigest()[:16]}.bin"
