"""Cuts a sub-graph out of the cleaned ONNX model along values that ONNX has a name for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onnx import ModelProto

from collage_engine.model.onnx_outer_values import outer_values, with_outer_values
from collage_engine.model.onnx_types import value_info
from collage_engine.support.errors import ModelError

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

_RESERVED = re.compile(r"_*v\d+")


def slice_model(model: ImportedModel, inputs: Sequence[int], outputs: Sequence[int]) -> ModelProto:
    """Return the part of the cleaned model between these nodes' values.

    Graph inputs and outputs are named ``v<index>``, in argument order. Raises ``ModelError``
    when a border value is inside a decomposed ONNX node, or when the outputs also need
    something that is not among the inputs.
    """
    index = model.onnx_index
    values = model.graph.values
    names = {_border_name(model, i): f"v{i}" for i in inputs}
    output_names = {_border_name(model, i): f"v{i}" for i in outputs}
    kept, weights = index.walk(set(names), list(output_names))
    rename = names | output_names
    result = ModelProto()
    result.ir_version = model.onnx.ir_version
    result.producer_name = "collage"
    result.opset_import.extend(model.onnx.opset_import)
    graph = result.graph
    graph.name = "slice"
    for node in kept:
        copy = graph.node.add()
        copy.CopyFrom(node)
        copy.input[:] = [_renamed(v, rename) for v in node.input]
        copy.output[:] = [_renamed(v, rename) for v in node.output]
        outer = {v: _renamed(v, rename) for v in outer_values(node)}
        del copy.attribute[:]
        copy.attribute.extend(with_outer_values(a, outer) for a in node.attribute)
    for name in weights:
        tensor = graph.initializer.add()
        tensor.CopyFrom(index.initializer[name])
        tensor.name = _renamed(name, rename)
    graph.input.extend(value_info(f"v{i}", values[i].type) for i in inputs)
    graph.output.extend(value_info(f"v{i}", values[i].type) for i in outputs)
    return result


def read_values(
    model: ImportedModel, known: Iterable[int], outputs: Sequence[int]
) -> tuple[int, ...]:
    """Return which of the known values a slice that makes the outputs has to be given.

    Raises:
        ModelError: The outputs need something else, too, or are inside an ONNX node.
    """
    given = {_border_name(model, i): i for i in known}
    kept, _ = model.onnx_index.walk(set(given), [_border_name(model, i) for i in outputs])
    read = {value for node in kept for value in (*node.input, *outer_values(node))}
    return tuple(sorted(index for name, index in given.items() if name in read))


def _border_name(model: ImportedModel, index: int) -> str:
    value = model.graph.values[index]
    if value.onnx_value is None:
        node = model.graph.operator_of(value.index)
        names = node.onnx_nodes if node is not None else ()
        inside = ", ".join(f"'{n}'" for n in names) or "a lowered node"
        raise ModelError(f"the value {index} is inside the ONNX node {inside}")
    return value.onnx_value


def _renamed(value: str, rename: dict[str, str]) -> str:
    if value in rename:
        return rename[value]
    return f"_{value}" if _RESERVED.fullmatch(value) else value
