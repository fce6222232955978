"""Gives the user's own file as a whole model for toolchains.

What a runtime's optimiser knows it often knows by patterns, which a clean-up can break: a
RepGhostNet takes ONNX Runtime 1.2 times as long after ours, and no model was clearly faster by it
(``tests/benchmarks/RESULTS.md``).
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from collage_engine.model.dimensions import drop_values, open_inputs
from collage_engine.model.onnx_expand import loses_logarithm
from collage_engine.model.onnx_file import read_model
from collage_engine.model.onnx_types import value_info
from collage_engine.support.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import ModelProto, ValueInfoProto

    from collage_engine.model.importer import ImportedModel
    from collage_engine.records.graph import OperatorSet, TensorType, ValueIndex

FIRST_CONSTANT_INITIALIZERS = 4
"""Version of ONNX's IR from which on an initializer need not be an input, and is a constant then
(``onnx/docs/IR.md``)."""


def original_model(
    model: ImportedModel,
    nodes: OperatorSet,
    inputs: Sequence[ValueIndex],
    outputs: Sequence[ValueIndex],
) -> ModelProto | None:
    """Return the user's file with the sizes of its inputs set, where a sub-graph is all of it.

    Args:
        model: The imported model.
        nodes: The operators of the sub-graph.
        inputs: Its inputs, in argument order.
        outputs: Its outputs, in argument order.

    Returns:
        None where the sub-graph is only a part; where the file was no file, is gone or has changed;
        where it takes or gives something else than the sub-graph; or where it holds a logarithm
        that clean-up keeps from losing its value.
    """
    graph = model.graph
    path = model.record.path
    if nodes != graph.everything or not path or not Path(path).is_file():
        return None
    try:
        own, digest = read_model(path)
    except (ModelError, UsageError):
        return None
    if digest != model.record.sha256:
        return None
    makers = {output: node for node in own.graph.node for output in node.output}
    for node in own.graph.node:
        maker = makers.get(node.input[0]) if node.input else None
        if maker is not None and loses_logarithm(node, maker):
            return None
    drop_values(own, model.record.shapes)
    given = list(open_inputs(own).values())
    taken = _in_order(given, graph.record.inputs, inputs, model.inputs)
    made = _in_order(own.graph.output, graph.record.outputs, outputs, model.outputs)
    if taken is None or made is None:
        return None
    kinds = dict(model.inputs)
    sized = [value_info(value.name, kinds[value.name]) for value in taken]
    if any(_element_type(a) != _element_type(b) for a, b in zip(taken, sized, strict=True)):
        return None
    own.ir_version = max(own.ir_version, FIRST_CONSTANT_INITIALIZERS)
    for values, infos in ((own.graph.input, sized), (own.graph.output, made)):
        kept = deepcopy(list(infos))
        del values[:]
        values.extend(kept)
    return own


def _in_order(
    values: Sequence[ValueInfoProto],
    indices: Sequence[ValueIndex],
    order: Sequence[ValueIndex],
    known: Sequence[tuple[str, TensorType]],
) -> list[ValueInfoProto] | None:
    """Return a file's inputs or outputs in the order of a sub-graph's; None if they differ."""
    same_names = [value.name for value in values] == [name for name, _ in known]
    by_index = dict(zip(indices, values, strict=False))
    if not same_names or not sorted(by_index) == sorted(order) == sorted(indices):
        return None
    return [by_index[index] for index in order]


def _element_type(value: ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)
