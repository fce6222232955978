"""Finds the sizes of a model's inputs: what the file leaves open, and what the user says of it.

Exporters name dimensions. Some names are sums or products of others (``past_sequence_length +
sequence_length``): their sizes are computed, and compared with what is given for them.
"""

from __future__ import annotations

import ast
import operator
import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorShapeProto, ValueInfoProto

from collage_engine.model.onnx_file import tensor_array
from collage_engine.records.shapes import OpenSizes
from collage_engine.support.errors import MOST_CHARACTERS, ModelError, UsageError
from collage_engine.support.text import counted

Shapes = dict[str, tuple[int, ...]]
"""Sizes of inputs by name."""

NO_VERSION = 2**63 - 1
"""What ONNX Runtime's sessions say of a model that states no version: the largest int64."""

IMAGE_SIZE = 224
"""Pixels of an image's side in an example of sizes; chosen: most classifiers are trained at it."""
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def open_inputs(model: ModelProto, kept: Container[str] = ()) -> dict[str, ValueInfoProto]:
    """Return the graph's inputs by name, without those that are weights and are not to be kept."""
    weights = {tensor.name for tensor in model.graph.initializer if tensor.name not in kept}
    return {value.name: value for value in model.graph.input if value.name not in weights}


def description(model: ModelProto) -> dict[str, Any]:
    """Return what a model's file says of it, as sessions of ONNX Runtime tell it.

    Returns:
        ``metadata``; ``header`` (the attributes of ONNX Runtime's ``ModelMetadata``); and ``sizes``
        of all tensors that are inputs or outputs: numbers, names, or None where there is neither.
    """
    values = [*model.graph.input, *model.graph.output]
    tensors = {v.name: v.type.tensor_type for v in values if v.type.HasField("tensor_type")}
    return {
        "metadata": {prop.key: prop.value for prop in model.metadata_props},
        "header": {
            "producer_name": model.producer_name,
            "graph_name": model.graph.name,
            "domain": model.domain,
            "description": model.doc_string,
            "graph_description": model.graph.doc_string,
            "version": model.model_version if model.HasField("model_version") else NO_VERSION,
        },
        "sizes": {
            name: [dim.dim_value if _known(dim) else dim.dim_param or None for dim in of.shape.dim]
            for name, of in tensors.items()
            if of.HasField("shape")
        },
    }


def kept_sizes(model: ModelProto, shapes: Mapping[str, tuple[int, ...]], path: str) -> Shapes:
    """Return the shapes, with the sizes of inputs that keep theirs.

    An input for which the file holds a value, too (an initializer), becomes a constant unless the
    user names it: with ``--keep-inputs``, which is no sizes here, or with its sizes.

    Raises:
        UsageError: What is to be kept is a constant of the file, or an input without a value.
    """
    values = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    inputs = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    kept = dict(shapes)
    for name, sizes in shapes.items():
        if name in values and name in inputs:
            kept[name] = sizes or values[name]
        elif name in values or (inputs.get(name) and not sizes):
            what = "a constant and no input" if name in values else "an input that has no value"
            raise UsageError(f"{_shape_option(name, sizes)}: it is {what} in {path}.")
    return kept


def drop_values(model: ModelProto, names: Container[str]) -> dict[str, np.ndarray]:
    """Drop the values that a file holds for these inputs, in place, and return them."""
    inputs = {value.name for value in model.graph.input if value.name in names}
    tensors = model.graph.initializer
    dropped = {}
    for index in reversed(range(len(tensors))):
        tensor = tensors[index]
        if tensor.name in inputs:
            dropped[tensor.name] = tensor_array(tensor, f"the value of the input '{tensor.name}'")
            del tensors[index]
    return dropped


def open_sizes(model: ModelProto) -> OpenSizes:
    """Return what the model leaves open of its inputs' sizes, with 1 for each in the examples.

    Names that are computed from others are left out. Sequences of tensors are left out, too: their
    sizes are given one by one.
    """
    inputs = open_inputs(model)
    names = _NamedSizes(inputs)
    whole: Shapes = {}
    for name, value in inputs.items():
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        if any(not _known(dim) and not dim.dim_param for dim in dims):
            whole[name] = tuple(dim.dim_value if _known(dim) else 1 for dim in dims)
        elif value.type.HasField("tensor_type") and not tensor.HasField("shape"):
            whole[name] = (1, 1)
    dimensions = {
        name: places
        for name, places in _places(inputs).items()
        if not names.is_computed(name) and whole.keys().isdisjoint(places)
    }
    return OpenSizes(dimensions=dimensions, inputs=whole)


def _places(inputs: Mapping[str, ValueInfoProto]) -> dict[str, tuple[str, ...]]:
    """Return the inputs that have each named dimension, in their order."""
    by_dimension: dict[str, dict[str, None]] = {}
    for name, value in inputs.items():
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                by_dimension.setdefault(dim.dim_param, {})[name] = None
    return {dimension: tuple(places) for dimension, places in by_dimension.items()}


class _NamedSizes:
    """The named dimensions of a model's inputs, and the sizes that are known of them."""

    def __init__(self, inputs: Mapping[str, ValueInfoProto]) -> None:
        self._names = set(_places(inputs))
        self._trees = {name: tree for name in self._names if (tree := self._computation(name))}
        self._given: dict[str, tuple[int, str]] = {}
        """Size of each dimension that the user names, with the option that says so."""

    def _computation(self, name: str) -> ast.expr | None:
        """Return a name as an expression over other names; None where it is no such thing."""
        if len(name) > MOST_CHARACTERS:
            return None
        try:
            tree = ast.parse(name.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            return None
        if not isinstance(tree, ast.BinOp):
            return None
        allowed = (ast.BinOp, ast.Name, ast.Constant, ast.Load, *_OPERATORS)
        for part in ast.walk(tree):
            if not isinstance(part, allowed):
                return None
            if isinstance(part, ast.Constant) and type(part.value) is not int:
                return None
            if isinstance(part, ast.Name) and part.id not in self._names:
                return None
        return tree

    def is_computed(self, name: str) -> bool:
        """Tell whether the name is a sum or product of others that have a place of their own."""
        return name in self._trees

    def give(self, name: str, size: int, option: str) -> None:
        """Take the size that an option states; UsageError where another one states another."""
        before = self._given.setdefault(name, (size, option))
        if before[0] != size:
            raise UsageError(f"{option} contradicts {before[1]} about '{name}'.")

    def check(self) -> None:
        """Raise ``UsageError`` where a given size is not the one that is computed."""
        for name, tree in self._trees.items():
            computed = self._value(tree)
            if computed is not None and computed < 0:
                raise UsageError(f"the dimension '{name}' would have the size {computed}.")
            if name in self._given and computed not in (None, self._given[name][0]):
                size, option = self._given[name]
                raise UsageError(
                    f"{option} makes '{name}' {size}, and the sizes given for its parts make it "
                    f"{computed}."
                )

    def size(self, name: str) -> int | None:
        """Return a dimension's size, given or computed; None where it is not known."""
        if name in self._given:
            return self._given[name][0]
        return self._value(self._trees[name]) if name in self._trees else None

    def missing(self, name: str) -> list[str]:
        """Return the names to give so that the size of this one is known."""
        if self.size(name) is not None:
            return []
        if name not in self._trees:
            return [name]
        parts = [p.id for p in ast.walk(self._trees[name]) if isinstance(p, ast.Name)]
        return [missing for part in parts for missing in self.missing(part)]

    def _value(self, tree: ast.expr) -> int | None:
        if isinstance(tree, ast.Constant):
            return int(str(tree.value))
        if isinstance(tree, ast.Name):
            return self.size(tree.id)
        assert isinstance(tree, ast.BinOp)
        left, right = self._value(tree.left), self._value(tree.right)
        if left is None or right is None or (isinstance(tree.op, ast.FloorDiv) and not right):
            return None
        return _OPERATORS[type(tree.op)](left, right)


def input_shapes(
    model: ModelProto,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    path: str,
    arrays: Mapping[str, tuple[int, ...]] | None = None,
) -> Shapes:
    """Return the sizes of inputs that follow from values for the model's symbolic dimensions.

    Args:
        model: The model; it is not changed, and its weights are not needed.
        dims: Dimension → size.
        shapes: Input → all its sizes, as ``--shape`` gives them.
        path: The model's file, for messages.
        arrays: Input → sizes of the array that ``--inputs`` holds for it; they say what the file
            and ``shapes`` leave open.

    Returns:
        Sizes of every input that has one of the dimensions and all of whose sizes are known now,
        and those of ``shapes`` and ``arrays``.

    Raises:
        UsageError: The model has no such dimension, a size contradicts another one, or an input
            has a dimension beside these that is still open.
    """
    inputs = open_inputs(model, shapes)
    places, names = _places(inputs), _NamedSizes(inputs)
    for name in dims:
        if name not in places:
            raise UsageError(f"--dim {name}: {path} has no such dimension ({_has(inputs, names)}).")
    sizes_of = kept_sizes(model, shapes, path)
    options = {name: _shape_option(name, sizes) for name, sizes in sizes_of.items()}
    for name, sizes in (arrays or {}).items():
        if name in inputs and name not in sizes_of and not _is_fixed(inputs[name]):
            sizes_of[name] = _without_samples(inputs[name], sizes)
            options[name] = f"--inputs with '{name}' of the sizes {list(sizes)}"
    for name, option in options.items():
        if name in inputs:
            _check_shape(inputs[name], sizes_of[name], names, option, path)
    for dim_name, size in dims.items():
        names.give(dim_name, size, f"--dim {dim_name}={size}")
    names.check()
    left = {name: _sizes(value, names) for name, value in inputs.items() if name not in sizes_of}
    named = {
        name
        for name, sizes in left.items()
        for dim, size in zip(inputs[name].type.tensor_type.shape.dim, sizes, strict=True)
        if dim.dim_param and size is not None
    }
    if any(None in left[name] for name in named):
        unknown = {name: sizes for name, sizes in left.items() if None in sizes}
        raise UsageError(_unknown_sizes(inputs, unknown, names, path))
    for name in left:
        if name in named:
            sizes_of[name] = tuple(size for size in left[name] if size is not None)
    return sizes_of


def _shape_option(name: str, sizes: tuple[int, ...]) -> str:
    return f"--shape {name}={','.join(map(str, sizes))}" if sizes else f"--keep-inputs {name}"


def _is_fixed(value: ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(map(_known, tensor.shape.dim))


def _without_samples(value: ValueInfoProto, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return an array's sizes without the leading axis along which there may be samples."""
    tensor = value.type.tensor_type
    several = tensor.HasField("shape") and len(sizes) == len(tensor.shape.dim) + 1
    return tuple(sizes[1:] if several else sizes)


def _sizes(value: ValueInfoProto, names: _NamedSizes) -> list[int | None]:
    """Return an input's sizes as far as the file and the names tell."""
    return [
        dim.dim_value if _known(dim) else names.size(dim.dim_param) if dim.dim_param else None
        for dim in value.type.tensor_type.shape.dim
    ]


def _known(dim: TensorShapeProto.Dimension) -> bool:
    # Exporters write 0 (or less) for "unknown" as often as they leave the size out.
    return bool(dim.HasField("dim_value") and dim.dim_value > 0)


def _has(inputs: Mapping[str, ValueInfoProto], names: _NamedSizes) -> str:
    """Return what the model has instead, in words."""
    names_in_file = [name for name in _places(inputs) if not names.is_computed(name)]
    if names_in_file:
        return "it has " + ", ".join(f"'{name}'" for name in names_in_file)
    return f"all sizes of its {counted(len(inputs), 'input')} are fixed or have no name"


def set_shapes(model: ModelProto, shapes: Mapping[str, tuple[int, ...]], path: str) -> None:
    """Give every graph input its sizes, in place.

    A size given for one input also holds for the same named dimension of the others, and for the
    names that are computed from it. A size of 0 that is given is meant as it stands.

    Raises:
        UsageError: A shape does not fit the model, or contradicts another one.
        ModelError: Sizes are still unknown; the sentence names options that give them.
    """
    inputs = open_inputs(model)
    names = _NamedSizes(inputs)
    for name, shape in shapes.items():
        if name not in inputs:
            listed = ", ".join(f"'{n}'" for n in inputs) or "none"
            option = "--shape" if shape else "--keep-inputs"
            raise UsageError(f"{option} {name}: {path} has no such input (it has {listed}).")
        _check_shape(inputs[name], shape, names, _shape_option(name, shape), path)
    names.check()
    unknown: dict[str, list[int | None] | None] = {}
    for name, value in inputs.items():
        tensor = value.type.tensor_type
        sizes = _sizes(value, names)
        if name not in shapes and (None in sizes or not tensor.HasField("shape")):
            unknown[name] = sizes if tensor.HasField("shape") else None
    if unknown:
        raise ModelError(_unknown_sizes(inputs, unknown, names, path))
    for name, value in inputs.items():
        given = shapes[name] if name in shapes else _sizes(value, names)
        dims = value.type.tensor_type.shape.dim
        while len(dims) < len(given):
            dims.add()
        for dim, size in zip(dims, given, strict=True):
            if size is not None:
                dim.dim_value = size


def _check_shape(
    value: ValueInfoProto, shape: tuple[int, ...], names: _NamedSizes, option: str, path: str
) -> None:
    """Check the sizes that an option gives for an input, and learn those of its dimensions."""
    tensor = value.type.tensor_type
    if any(size < 0 for size in shape):
        raise UsageError(f"{option}: sizes must not be negative.")
    if not tensor.HasField("shape"):
        return
    dims = tensor.shape.dim
    if len(dims) != len(shape):
        raise UsageError(
            f"{option}: the input '{value.name}' has {counted(len(dims), 'dimension')}."
        )
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if _known(dim) and dim.dim_value != size:
            raise UsageError(
                f"{option}: dimension {axis} of the input '{value.name}' is fixed to "
                f"{dim.dim_value} in the file. If your program opens it there before it runs the "
                f'model, place a file whose sizes are open: python -c "import onnx; '
                f"m = onnx.load({path!r}); g = m.graph; g.ClearField('value_info'); "
                "[d.Clear() for v in (*g.input, *g.output) for d in v.type.tensor_type.shape.dim]; "
                "onnx.save(m, 'open.onnx')\""
            )
        if dim.dim_param:
            names.give(dim.dim_param, size, option)


def _unknown_sizes(
    inputs: Mapping[str, ValueInfoProto],
    unknown: Mapping[str, list[int | None] | None],
    names: _NamedSizes,
    path: str,
) -> str:
    """Return the sentence about open sizes, with options that can be given as they stand."""
    open_names = list(
        dict.fromkeys(
            missing
            for name in unknown
            for dim in inputs[name].type.tensor_type.shape.dim
            if dim.dim_param
            for missing in names.missing(dim.dim_param)
        )
    )
    of_images = {d.dim_param for name in unknown for d in _open_axes_of_image(inputs[name])}
    examples = {name: IMAGE_SIZE if name in of_images else 1 for name in open_names}
    for name, size in examples.items():
        names.give(name, size, "the example")
    said, options, nameless = [], [], False
    for name, sizes in unknown.items():
        if sizes is None:
            said.append(f"'{name}' is of unknown rank")
            options.append(_quoted_shape(name, (1, 1)))
            nameless = True
            continue
        dims = inputs[name].type.tensor_type.shape.dim
        shown = [
            str(size) if size is not None else dim.dim_param or "?"
            for dim, size in zip(dims, sizes, strict=True)
        ]
        said.append(f"'{name}' is [{', '.join(shown)}]")
        nameless = nameless or any(
            s is None and not d.dim_param for d, s in zip(dims, sizes, strict=True)
        )
        named = _sizes(inputs[name], names)
        first = len(named) - len(_open_axes_of_image(inputs[name]))
        example = [
            size if size is not None else IMAGE_SIZE if axis >= first else 1
            for axis, size in enumerate(named)
        ]
        options.append(_quoted_shape(name, tuple(example)))
    advice = " ".join(options)
    if open_names and not nameless:
        advice += " or " + " ".join(
            f"--dim {shlex.quote(f'{name}={examples[name]}')}" for name in open_names
        )
    return (
        f"{path} has inputs of unknown size ({'; '.join(said)}): give them, for example {advice}; "
        "`collage place` also takes them from --inputs"
    )


def _open_axes_of_image(value: ValueInfoProto) -> Sequence[TensorShapeProto.Dimension]:
    """Return the last two axes of four where the file leaves both open, else none."""
    dims = value.type.tensor_type.shape.dim
    return () if len(dims) != 4 or any(map(_known, dims[2:])) else dims[2:]


def _quoted_shape(name: str, sizes: tuple[int, ...]) -> str:
    return f"--shape {shlex.quote(name + '=' + ','.join(map(str, sizes)))}"
