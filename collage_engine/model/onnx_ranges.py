"""Checks ranges of attributes, constant indices and sizes that ONNX's inference leaves out.

A kernel of zero or an index beyond the end would make generated code read outside of its arrays;
it is found here, with the node's name, before any code is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from collage_engine.machine.cgroups import memory_bytes
from collage_engine.model.draft import Draft, Op
from collage_engine.records.errors import ModelError
from collage_engine.records.reasons import shown

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Matrices that are stacked in each weight, by operator (ONNX's definition)."""
_AUTO_PADS = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"}
_DIRECTIONS = {"forward", "reverse", "bidirectional"}
_WINDOWS = {
    "AveragePool",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "LpPool",
    "MaxPool",
    "QLinearConv",
}
_POOLS = {"AveragePool", "LpPool", "MaxPool"}


class _Wrong(Exception):
    """The error that says what is wrong with a node, to be said after the node's name."""


def check_attributes(draft: Draft) -> None:
    """Check attributes that need no types: kernels, strides, pads, directions, permutations.

    Raises:
        ModelError: One is out of its range; the sentence names the node.
    """
    _check_each(draft, _ATTRIBUTE_CHECKS)


def check_ranges(draft: Draft) -> None:
    """Check constant indices, and sizes that have to agree, on a draft with types.

    Raises:
        ModelError: An index lies outside of what it indexes, or sizes do not agree.
    """
    _check_each(draft, _RANGE_CHECKS)


def check_recurrent(draft: Draft) -> None:
    """Check the weights of LSTM, GRU and RNN, before their steps are written out.

    Raises:
        ModelError: They do not fit the input or each other.
    """
    _check_each(draft, dict.fromkeys(_GATES, _recurrent_weights))


def check_sizes(draft: Draft) -> None:
    """Check that every value has a size, and one that this machine could hold.

    Raises:
        ModelError: A size is negative, or the value alone is larger than the machine's memory.
    """
    most = memory_bytes()
    for name, (_, shape) in draft.types.items():
        if shape is None:
            continue
        if any(extent < 0 for extent in shape):
            raise ModelError(
                f"{draft.path}: the value '{shown(name)}' has a negative size: {shape}."
            )
        if math.prod(shape) > most:  # every element takes a byte or more
            raise ModelError(
                f"{draft.path}: the value '{shown(name)}' of size {shape} does not fit into this "
                f"machine's memory of {most / 2**30:.0f} GiB."
            )


_Check = Callable[[Draft, Op], None]


def _check_each(draft: Draft, checks: dict[str, _Check]) -> None:
    for op in draft.ops:
        check = checks.get(op.type) if not op.domain else None
        if check is None:
            continue
        try:
            check(draft, op)
        except _Wrong as wrong:
            raise ModelError(
                f"{draft.path}: the node '{shown(op.name)}' ({op.type}) is not possible: {wrong}."
            ) from None


def _integers(op: Op, name: str) -> list[int]:
    return [int(value) for value in op.attribute(name) or ()]


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Wrong(otherwise)


# -- attributes ----------------------------------------------------------------------------


def _window(draft: Draft, op: Op) -> None:
    kernel, pads = _integers(op, "kernel_shape"), _integers(op, "pads")
    for name in ("kernel_shape", "strides", "dilations"):
        values = _integers(op, name)
        _need(all(v > 0 for v in values), f"its {name} are {values}, which must be positive")
        if kernel and values:
            _need(
                len(values) == len(kernel),
                f"its {name} are {values} for a kernel of {len(kernel)} dimensions",
            )
    _need(all(p >= 0 for p in pads), f"its pads are {pads}, which must not be negative")
    if kernel and pads:
        _need(
            len(pads) == 2 * len(kernel),
            f"it has {len(pads)} pads for a kernel of {len(kernel)} dimensions",
        )
    mode = op.attribute("auto_pad", "NOTSET")
    _need(mode in _AUTO_PADS, f"its auto_pad is '{shown(str(mode))}', which the standard has not")
    group = op.attribute("group", 1)
    _need(group > 0, f"its group is {group}")
    if op.type in _POOLS and kernel and pads:
        dilations = _integers(op, "dilations") or [1] * len(kernel)
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)] * 2
        _need(
            all(p < r for p, r in zip(pads, reach, strict=True)),
            f"its pads {pads} are not smaller than its kernel {kernel}",
        )


def _recurrent(draft: Draft, op: Op) -> None:
    direction = op.attribute("direction", "forward")
    _need(
        direction in _DIRECTIONS,
        f"its direction is '{shown(str(direction))}', not forward, reverse or bidirectional",
    )
    directions = 2 if direction == "bidirectional" else 1
    names = op.attribute("activations")
    if names is not None:
        wanted = directions * {"LSTM": 3, "GRU": 2, "RNN": 1}[op.type]
        _need(len(names) == wanted, f"it has {len(names)} activations instead of {wanted}")


def _permutation(draft: Draft, op: Op) -> None:
    if op.attribute("perm") is not None:
        perm = _integers(op, "perm")
        _need(
            sorted(perm) == list(range(len(perm))), f"its perm is {perm}, which is no permutation"
        )


def _split_attribute(draft: Draft, op: Op) -> None:
    parts = _integers(op, "split")
    _need(all(p >= 0 for p in parts), f"its parts are {parts}, which must not be negative")


def _block(draft: Draft, op: Op) -> None:
    size = op.attribute("blocksize", 1)
    _need(size > 0, f"its blocksize is {size}, which must be positive")


_ATTRIBUTE_CHECKS: dict[str, _Check] = {
    **dict.fromkeys(_WINDOWS, _window),
    **dict.fromkeys(_GATES, _recurrent),
    "Transpose": _permutation,
    "Split": _split_attribute,
    "DepthToSpace": _block,
    "SpaceToDepth": _block,
}


# -- indices and sizes ---------------------------------------------------------------------


def _constant(draft: Draft, op: Op, place: int) -> np.ndarray | None:
    name = op.input(place)
    return draft.constants[name] if name and name in draft.constants else None


def _axis(draft: Draft, op: Op, default: int = 0) -> tuple[int, tuple[int, ...]] | None:
    """Return the axis counted from the first, and the shape; None while the shape is unknown."""
    shape = draft.shape(op.inputs[0])
    if shape is None:
        return None
    axis = op.attribute("axis", default)
    rank = len(shape)
    _need(-rank <= axis < rank, f"its axis {axis} does not exist in a value of {rank} dimensions")
    return axis % rank, shape


def _within(indices: np.ndarray | None, extent: int, where: str) -> None:
    """Checks that known indices lie within an extent; negative ones count from its end."""
    if indices is None or not indices.size or indices.dtype.kind not in "iu":
        return
    for index in (int(indices.min()), int(indices.max())):
        _need(-extent <= index < extent, f"its index {index} lies outside of {where} of {extent}")


def _gather(draft: Draft, op: Op) -> None:
    known = _axis(draft, op)
    if known is not None:
        axis, shape = known
        _within(_constant(draft, op, 1), shape[axis], f"the dimension {axis}")


def _coordinates(draft: Draft, op: Op) -> None:
    """Checks GatherND and ScatterND: the last axis of the indices holds one coordinate each."""
    shape, indices = draft.shape(op.inputs[0]), _constant(draft, op, 1)
    batch = op.attribute("batch_dims", 0)
    width_of = draft.shape(op.inputs[1])
    if shape is None or not width_of:
        return
    width = width_of[-1]
    _need(
        batch >= 0 and batch + width <= len(shape),
        f"its indices have {width} coordinates for a value of {len(shape)} dimensions",
    )
    for place in range(width):
        axis = batch + place
        column = None if indices is None else indices[..., place]
        _within(column, shape[axis], f"the dimension {axis}")


def _split(draft: Draft, op: Op) -> None:
    known = _axis(draft, op)
    if known is None:
        return
    axis, shape = known
    given = _constant(draft, op, 1)
    parts = _integers(op, "split") if given is None else [int(v) for v in given.reshape(-1)]
    if parts:
        _need(
            all(p >= 0 for p in parts)
            and sum(parts) == shape[axis]
            and len(parts) == len(op.outputs),
            f"its parts {_listed(parts)} do not make up the {shape[axis]} of dimension {axis}",
        )


def _convolution(draft: Draft, op: Op) -> None:
    data, weight = draft.shape(op.inputs[0]), draft.shape(op.input(1))
    if data is None or weight is None:
        return
    _need(
        len(data) == len(weight) and len(data) >= 3,
        f"its weight has {len(weight)} dimensions and its input {len(data)}",
    )
    kernel = _integers(op, "kernel_shape")
    _need(
        not kernel or kernel == list(weight[2:]),
        f"its kernel_shape {kernel} is not that of its weight {weight}",
    )
    _need(all(k > 0 for k in weight), f"its weight {weight} is empty")
    group = op.attribute("group", 1)
    transposed = op.type == "ConvTranspose"
    channels = weight[0] if transposed else weight[1] * group
    _need(
        channels == data[1] and weight[0] % group == 0,
        f"its weight {weight} in {group} group(s) does not fit the {data[1]} channels of its input",
    )
    outputs = weight[1] * group if transposed else weight[0]
    bias = draft.shape(op.inputs[2]) if op.input(2) and op.type != "ConvInteger" else None
    _need(bias is None or bias == (outputs,), f"its bias {bias} does not fit {outputs} channels")
    for name in ("strides", "dilations", "pads"):
        values, dimensions = _integers(op, name), (len(data) - 2) * (2 if name == "pads" else 1)
        _need(
            not values or len(values) == dimensions,
            f"its {name} {values} do not fit {len(data) - 2} dimensions",
        )


def _pool(draft: Draft, op: Op) -> None:
    data, kernel = draft.shape(op.inputs[0]), _integers(op, "kernel_shape")
    _need(
        data is None or len(data) == len(kernel) + 2,
        f"its kernel {kernel} does not fit an input of {len(data or ())} dimensions",
    )


def _recurrent_weights(draft: Draft, op: Op) -> None:
    data = draft.shape(op.inputs[0])
    weight, state = draft.shape(op.input(1)), draft.shape(op.input(2))
    if data is None or weight is None or state is None:
        return
    directions = 2 if op.attribute("direction", "forward") == "bidirectional" else 1
    hidden = op.attribute("hidden_size", state[-1] if state else 0)
    rows = _GATES[op.type] * hidden
    _need(len(data) == 3, f"its input has {len(data)} dimensions instead of 3")
    wanted: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "W": (weight, (directions, rows, data[2])),
        "R": (state, (directions, rows, hidden)),
    }
    if op.input(3):
        wanted["B"] = (draft.shape(op.inputs[3]) or (), (directions, 2 * rows))
    for name, (found, fits) in wanted.items():
        _need(found == fits, f"its {name} is {found}, which should be {fits}")


def _product(draft: Draft, op: Op) -> None:
    """Check that Gemm's inner sizes agree; shape inference looks at the outer ones."""
    a, b = draft.shape(op.inputs[0]), draft.shape(op.inputs[1])
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return
    inner_a = a[0] if op.attribute("transA", 0) else a[1]
    inner_b = b[1] if op.attribute("transB", 0) else b[0]
    _need(inner_a == inner_b, f"the sizes {a} and {b} do not fit")


def _reshape(draft: Draft, op: Op) -> None:
    before, after = draft.shape(op.inputs[0]), draft.shape(op.outputs[0])
    _need(
        before is None or after is None or math.prod(before) == math.prod(after),
        f"{before} cannot become {after}",
    )


def _normalization(draft: Draft, op: Op) -> None:
    data = draft.shape(op.inputs[0])
    if data is None or len(data) < 2:
        return
    for name in op.inputs[1 : 5 if op.type == "BatchNormalization" else 3]:
        found = draft.shape(name)
        _need(
            found is None or found == (data[1],),
            f"'{shown(name)}' is {found} for {data[1]} channels",
        )


def _slice(draft: Draft, op: Op) -> None:
    steps = _constant(draft, op, 4)
    _need(steps is None or bool(np.all(steps)), "a step is 0")


def _transpose(draft: Draft, op: Op) -> None:
    shape, perm = draft.shape(op.inputs[0]), _integers(op, "perm")
    _need(
        shape is None or not perm or len(perm) == len(shape),
        f"its perm {perm} does not fit {len(shape or ())} dimensions",
    )


def _einsum(draft: Draft, op: Op) -> None:
    """Checks that each letter of an equation stands for one size.

    Equations with an ellipsis are left to ONNX.
    """
    equation = str(op.attribute("equation", "")).replace(" ", "")
    if "..." in equation:
        return
    terms = equation.partition("->")[0].split(",")
    _need(
        len(terms) == len(op.inputs),
        f"its equation has {len(terms)} terms for {len(op.inputs)} inputs",
    )
    sizes: dict[str, int] = {}
    for term, name in zip(terms, op.inputs, strict=True):
        shape = draft.shape(name)
        if shape is None:
            continue
        _need(len(term) == len(shape), f"'{shown(term)}' stands for a value of size {shape}")
        for letter, extent in zip(term, shape, strict=True):
            known = sizes.setdefault(letter, extent)
            if known == 1:
                sizes[letter] = extent
            _need(extent in (1, sizes[letter]), f"'{letter}' is {known} and {extent}")


def _tile(draft: Draft, op: Op) -> None:
    repeats = _constant(draft, op, 1)
    _need(repeats is None or bool((repeats >= 0).all()), "it repeats a negative number of times")


def _resize(draft: Draft, op: Op) -> None:
    places = (1,) if op.type == "Upsample" or len(op.inputs) < 3 else (2, 3)
    for place in places:
        sizes = _constant(draft, op, place)
        _need(
            sizes is None or not sizes.size or bool((sizes > 0).all()),
            "its scales or sizes must be positive",
        )


def _listed(values: Sequence[int]) -> str:
    return (
        str(list(values)) if len(values) <= 10 else f"[{values[0]}, {values[1]}, …, {values[-1]}]"
    )


_RANGE_CHECKS: dict[str, _Check] = {
    "BatchNormalization": _normalization,
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "ConvTranspose": _convolution,
    "Einsum": _einsum,
    "Gather": _gather,
    "GatherElements": _gather,
    "GatherND": _coordinates,
    "Gemm": _product,
    "InstanceNormalization": _normalization,
    "Reshape": _reshape,
    "Resize": _resize,
    "Scatter": _gather,
    "ScatterElements": _gather,
    "ScatterND": _coordinates,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "Transpose": _transpose,
    "Upsample": _resize,
    **dict.fromkeys(_POOLS, _pool),
}
