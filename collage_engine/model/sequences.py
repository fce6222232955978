"""Replaces sequences at the border of a model by the tensors that they consist of.

A partition takes and makes tensors. An input that is a sequence of tensors is therefore replaced by
as many tensor inputs as the user gives sizes for, ``NAME[0]``, ``NAME[1]`` and so on, from which a
node of the model makes the sequence; an output that is a sequence by the tensors in it, whose
number is found out by running the model. The user's own file keeps its sequences:
``model.values`` translates for what runs that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from collage_engine.model.observed_types import SAMPLES, Evaluate, sample_inputs
from collage_engine.support.errors import ModelError, displayable, short_reason


def _is_sequence(value: ValueInfoProto) -> bool:
    return bool(value.type.WhichOneof("value") == "sequence_type")


def without_sequences(
    model: ModelProto, shapes: Mapping[str, tuple[int, ...]], path: str, evaluate: Evaluate
) -> tuple[ModelProto, dict[str, tuple[int, ...]]]:
    """Replace sequences at the border by their tensors, in place.

    Args:
        model: The user's model.
        shapes: Sizes by input; ``NAME[0]``, ``NAME[1]`` … of the tensors of a sequence, ``NAME[]``
            of one without any.
        path: The model's file, for messages.
        evaluate: Runs an ONNX model, to find out how many tensors the outputs have.

    Returns:
        The model, and the shapes that are those of inputs now.

    Raises:
        ModelError: Nothing says how many tensors an input has, or an output has another number of
            them each time.
    """
    graph = model.graph
    kept = dict(shapes)
    inputs, first = list(graph.input), 0
    del graph.input[:]
    for value in inputs:
        if not _is_sequence(value):
            graph.input.append(value)
            continue
        elements = _elements(value, kept, path)
        graph.input.extend(elements)
        graph.node.insert(first, _construct(value, [element.name for element in elements]))
        first += 1
    _take_apart_outputs(model, kept, path, evaluate)
    return model, kept


def _elements(
    value: ValueInfoProto, shapes: dict[str, tuple[int, ...]], path: str
) -> list[ValueInfoProto]:
    """Return the tensors that stand for an input, whose shapes are taken out of ``shapes``."""
    name = value.name
    kind = value.type.sequence_type.elem_type.tensor_type
    empty = shapes.pop(f"{name}[]", None)
    elements: list[ValueInfoProto] = []
    while f"{name}[{len(elements)}]" in shapes:
        element = f"{name}[{len(elements)}]"
        elements.append(helper.make_tensor_value_info(element, kind.elem_type, shapes[element]))
    if not elements and empty is None:
        raise ModelError(
            f"{path}: the input '{name}' is a sequence of tensors: give the sizes of each, for "
            f"example --shape '{name}[0]=2,3' --shape '{name}[1]=2,3'."
        )
    return elements


def _construct(value: ValueInfoProto, elements: Sequence[str]) -> NodeProto:
    if elements:
        return helper.make_node("SequenceConstruct", elements, [value.name], name=value.name)
    element = value.type.sequence_type.elem_type.tensor_type.elem_type
    return helper.make_node("SequenceEmpty", [], [value.name], name=value.name, dtype=element)


def _take_apart_outputs(
    model: ModelProto, shapes: Mapping[str, tuple[int, ...]], path: str, evaluate: Evaluate
) -> None:
    graph = model.graph
    outputs = list(graph.output)
    sequences = [value for value in outputs if _is_sequence(value)]
    if not sequences:
        return
    lengths = _lengths(model, [value.name for value in sequences], shapes, path, evaluate)
    del graph.output[:]
    for value in outputs:
        if not _is_sequence(value):
            graph.output.append(value)
            continue
        element = value.type.sequence_type.elem_type.tensor_type.elem_type
        count = lengths[value.name]
        checked = _check_length(graph, value.name, count)
        for place in range(count):
            name, number = f"{value.name}[{place}]", f"{value.name}[{place}] place"
            graph.initializer.append(numpy_helper.from_array(np.array(place, np.int64), number))
            graph.node.extend(
                [
                    helper.make_node("Add", [number, checked], [f"{number} checked"]),
                    helper.make_node(
                        "SequenceAt", [value.name, f"{number} checked"], [name], name=name
                    ),
                ]
            )
            graph.output.append(helper.make_tensor_value_info(name, element, None))
    if not graph.output:
        raise ModelError(f"{path}: its outputs are empty sequences: nothing to compute.")


def _check_length(graph: GraphProto, name: str, count: int) -> str:
    """Add nodes that make a zero, or end the run where a sequence has more tensors than expected.

    Without them an artifact would drop the tensors beyond the expected ones in silence. The zero
    is gathered at the sequence's length from a table that ends at the expected length; a runtime
    refuses the index of a longer one. A shorter sequence fails by itself, in ``SequenceAt``.

    Returns:
        The name of the zero, which every place in the sequence has to add.
    """
    table, length, zero = f"{name}[] table", f"{name}[] count", f"{name}[] checked"
    graph.initializer.append(numpy_helper.from_array(np.zeros(count + 1, np.int64), table))
    graph.node.extend(
        [
            helper.make_node("SequenceLength", [name], [length], name=length),
            helper.make_node("Gather", [table, length], [zero], name=zero),
        ]
    )
    return zero


def _lengths(
    model: ModelProto,
    names: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    path: str,
    evaluate: Evaluate,
) -> dict[str, int]:
    """Find how many tensors the outputs have, which must be as many on every sample that runs."""
    probe = deepcopy(model)
    del probe.graph.output[:]
    for name in names:
        length = f"{name}[] length"
        probe.graph.node.append(helper.make_node("SequenceLength", [name], [length]))
        probe.graph.output.append(helper.make_tensor_value_info(length, TensorProto.INT64, []))
    for value in probe.graph.input:
        for dim, size in zip(
            value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False
        ):
            dim.dim_value = size
    seen: set[tuple[int, ...]] = set()
    said = "it was not run"
    for sample in SAMPLES:
        try:
            inputs = sample_inputs(probe, sample)
            seen.add(tuple(int(n) for n in evaluate(probe, inputs)))
        except Exception as error:  # whatever the evaluator's library raises
            said = short_reason(error)
    if len(seen) != 1:
        raise ModelError(
            f"{path}: how many tensors the sequence '{displayable(names[0])}' has is not known: "
            f"{'it depends on the data' if seen else said}."
        )
    return dict(zip(names, seen.pop(), strict=True))
