"""Finds the symbolic dimensions of a model's inputs, and the shapes that values for them give."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import ModelProto, ValueInfoProto

from collage_engine.records.counted import counted
from collage_engine.records.errors import UsageError


def open_inputs(model: ModelProto) -> dict[str, ValueInfoProto]:
    """Return the graph's inputs by name, without those that are weights."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return {value.name: value for value in model.graph.input if value.name not in weights}


def symbolic_dimensions(model: ModelProto) -> dict[str, list[tuple[str, int]]]:
    """Returns the dimensions that the model names, in the order of its inputs.

    Returns:
        For each name, the inputs and axes, as (input, axis), that have it.
    """
    found: dict[str, list[tuple[str, int]]] = {}
    for name, value in open_inputs(model).items():
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                found.setdefault(dim.dim_param, []).append((name, axis))
    return found


def input_shapes(
    model: ModelProto,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    path: str,
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of inputs that follow from values for the model's symbolic dimensions.

    Args:
        model: The model; it is not changed, and its weights are not needed.
        dims: Dimension → size.
        shapes: Input → all its sizes, as ``--shape`` gives them.
        path: The model's file, for messages.

    Returns:
        Sizes of every input that has one of the dimensions and all of whose sizes are known now,
        and those of ``shapes``.

    Raises:
        UsageError: The model has no such dimension, a size contradicts what ``--shape`` says, or
            an input has a dimension beside these that is still open.
    """
    known = symbolic_dimensions(model)
    inputs = open_inputs(model)
    for name in dims:
        if name not in known:
            raise UsageError(f"--dim {name}: {path} has no such dimension ({_has(model, known)}).")
    found = {name: tuple(sizes) for name, sizes in shapes.items()}
    for dim, size in dims.items():
        for name, axis in known[dim]:
            given = found.get(name)
            if given is not None and axis < len(given) and given[axis] != size:
                raise UsageError(
                    f"--dim {dim}={size} contradicts --shape {name}={','.join(map(str, given))}: "
                    f"'{dim}' is dimension {axis} of the input '{name}'."
                )
    wanted = {name for dim in dims for name, _ in known[dim]} - found.keys()
    for name in (each for each in inputs if each in wanted):
        sizes = []
        for axis, dim in enumerate(inputs[name].type.tensor_type.shape.dim):
            size = dims.get(dim.dim_param, dim.dim_value)
            if size < 1:
                what = f"'{dim.dim_param}'" if dim.dim_param else f"{axis}, which has no name,"
                option = f"--dim {dim.dim_param}=…" if dim.dim_param else f"--shape {name}=…"
                raise UsageError(
                    f"{path}: dimension {what} of the input '{name}' is still open: give it with "
                    f"{option}"
                )
            sizes.append(size)
        found[name] = tuple(sizes)
    return found


def _has(model: ModelProto, known: Mapping[str, list[tuple[str, int]]]) -> str:
    """Return what the model has instead, in words."""
    if known:
        return "it has " + ", ".join(f"'{name}'" for name in known)
    inputs = open_inputs(model)
    return f"all sizes of its {counted(len(inputs), 'input')} are fixed or have no name"
