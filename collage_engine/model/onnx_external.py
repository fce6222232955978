"""Finds weights that an ONNX file keeps in files beside it, wherever in the model they are.

The main graph, the branches of If, Loop and Scan, and model-local functions may all hold tensors
whose data lies outside. All of them are read from the model's folder when the model is read, so
that nothing later looks for a file, whatever the working folder is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.external_data_helper import (
    load_external_data_for_tensor,
    set_external_data,
    uses_external_data,
)

from collage_engine.model.mapped_weights import (
    ALIGNMENT,
    LEAST_BYTES,
    MAPPED_TYPES,
    Place,
    keep_in_file,
    mapped_from_bytes,
)
from collage_engine.records.checks import LARGEST_INTEGER
from collage_engine.records.errors import ModelError
from collage_engine.records.reasons import first_line, shown

_BITS: dict[int, int] = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
}
"""Element types of which several lie in one byte, by their size in bits."""


def every_tensor(model: ModelProto) -> Iterator[TensorProto]:
    """Yield all tensors of a model: of its graph, of branches and functions, at any depth."""
    graphs: list[GraphProto] = [model.graph]
    nodes: list[Iterable[NodeProto]] = [function.node for function in model.functions]
    attributes: list[Iterable[AttributeProto]] = [f.attribute_proto for f in model.functions]
    while graphs or nodes or attributes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes.append(graph.node)
        elif nodes:
            attributes += [node.attribute for node in nodes.pop() if node.attribute]
        else:
            for attribute in attributes.pop():
                yield from _tensors_of(attribute)
                if attribute.HasField("g"):
                    graphs.append(attribute.g)
                graphs += attribute.graphs


def _tensors_of(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    for each in (*sparse, *attribute.sparse_tensors):
        yield from (each.values, each.indices)


def load_external_data(model: ModelProto, path: Path) -> None:
    """Make all tensors that lie in files beside the model at ``path`` usable, in place.

    They are read, unless all of them together are large: then the weights of the main graph stay
    in their files (``model.mapped_weights``), and only what cannot be mapped is read.

    Raises:
        ModelError: A file is outside the model's folder, missing, or of another size than the
            tensor that names it.
    """
    outside = [tensor for tensor in every_tensor(model) if uses_external_data(tensor)]
    places = [_checked_place(tensor, path) for tensor in outside]
    stays: set[int] = set()
    if sum(place.length for place in places) >= mapped_from_bytes():
        stays = {id(tensor) for tensor in model.graph.initializer}
    for tensor, place in zip(outside, places, strict=True):
        if id(tensor) in stays and _can_be_mapped(tensor, place):
            keep_in_file(tensor, Place(place.file.absolute(), place.offset, place.length))
        else:
            _load(tensor, place, path)


def _can_be_mapped(tensor: TensorProto, place: Place) -> bool:
    return (
        tensor.data_type in MAPPED_TYPES
        and place.length >= LEAST_BYTES
        and place.offset % ALIGNMENT == 0
    )


def tensor_bytes(tensor: TensorProto) -> int:
    """Returns the size in bytes of a tensor's data, by its type and shape.

    Raises:
        ValueError: The size is not known.
    """
    if any(extent < 0 for extent in tensor.dims):
        raise ValueError("it has a negative size")
    elements = 0 if 0 in tensor.dims else 1
    for extent in tensor.dims:
        elements *= extent
        if elements > LARGEST_INTEGER:
            raise ValueError("it has more elements than any file can hold")
    if tensor.data_type in _BITS:
        return (elements * _BITS[tensor.data_type] + 7) // 8
    if tensor.data_type == TensorProto.STRING:
        raise ValueError("strings cannot be kept in a file")
    try:
        return elements * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except (KeyError, ValueError, TypeError):
        raise ValueError(f"the element type {tensor.data_type} is not known") from None


def _checked_place(tensor: TensorProto, path: Path) -> Place:
    """Returns where a tensor of the model at ``path`` has its data.

    Raises:
        ModelError: The place is no range of a file beside the model.
    """
    place = {entry.key: entry.value for entry in tensor.external_data}
    name, location = shown(tensor.name), place.get("location", "")
    relative = Path(location)
    if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
        raise ModelError(
            f"{path}: the tensor '{name}' keeps its data at '{shown(location)}', which is not "
            "a file beside the model."
        )
    file = path.parent / relative
    if not _is_inside(file, path.parent):
        raise ModelError(
            f"{path}: the tensor '{name}' keeps its data at '{shown(location)}', which leads out "
            "of the model's folder."
        )
    if not _is_file(file):
        raise ModelError(
            f"{path} keeps its weights in '{shown(location)}' (tensor '{name}'), which is "
            f"missing: put it into {path.parent}."
        )
    try:
        offset, size = int(place.get("offset") or 0), tensor_bytes(tensor)
        length = int(place.get("length") or size)
        if max(offset, length) > LARGEST_INTEGER:
            raise ValueError("no file is that long")
        if offset < 0 or length != size:
            raise ValueError(
                f"it has {size} bytes by its type and shape, and is said to lie in {length} bytes "
                f"from byte {offset}"
            )
    except ValueError as error:
        raise ModelError(
            f"{path}: the data of the tensor '{name}' in '{shown(location)}' cannot be read: "
            f"{first_line(str(error))}."
        ) from None
    if file.stat().st_size < offset + length:
        raise ModelError(
            f"{file} is truncated: the tensor '{name}' ends at byte {offset + length}, the file at "
            f"{file.stat().st_size}."
        )
    return Place(file, offset, length)


def _load(tensor: TensorProto, place: Place, path: Path) -> None:
    """Read a tensor's data into it."""
    tensor.raw_data = b""
    location = str(place.file.relative_to(path.parent))
    set_external_data(tensor, location, place.offset, place.length)
    try:
        load_external_data_for_tensor(tensor, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{place.file} cannot be read: {shown(first_line(str(error)))}.") from None
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _is_inside(file: Path, folder: Path) -> bool:
    """Tell whether a file lies in a folder or below it, wherever links lead."""
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # links in a circle, a name that no file can have
        return False
