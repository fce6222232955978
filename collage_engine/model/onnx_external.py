"""Finds weights that an ONNX file keeps in files beside it, wherever in the model they are.

The main graph, the branches of If, Loop and Scan, and model-local functions may all hold tensors
whose data lies outside. All of them are read from the model's folder when the model is read, so
that nothing later looks for a file, whatever the working folder is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto
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
from collage_engine.support.errors import ModelError, first_line, shown


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


def _checked_place(tensor: TensorProto, path: Path) -> Place:
    """Returns where a tensor of the model at ``path`` has its data.

    Raises:
        ModelError: The place is no range of a file in the model's folder or below it.
    """
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = fields.get("location", "")
    named = f"{path}: the tensor '{shown(tensor.name)}' keeps its data in '{shown(location)}', "
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
