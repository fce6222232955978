"""Writes padding that ONNX leaves to be worked out as numbers."""

from __future__ import annotations

import numpy as np

from collage_engine.model.draft import Draft, Op

_WINDOWS = ("Conv", "MaxPool", "AveragePool", "LpPool", "ConvTranspose")


def explicit_pads(draft: Draft) -> None:
    """Replace auto_pad (and ConvTranspose's output_shape) by pads, where sizes are known.

    The draft is changed in place.
    """
    for op in draft.ops:
        if op.domain or op.type not in _WINDOWS:
            continue
        shape = draft.shape(op.inputs[0])
        mode = op.attribute("auto_pad", "NOTSET")
        if mode == "VALID":
            op.attributes.pop("auto_pad")
            op.attributes.pop("pads", None)
            mode = "NOTSET"
        kernel = op.attribute("kernel_shape")
        if kernel is None and op.type.startswith("Conv"):
            weights = draft.shape(op.inputs[1])
            kernel = None if weights is None else weights[2:]
        if shape is None or kernel is None:
            continue
        if op.type == "ConvTranspose":
            _transposed(op, mode, shape[2:], list(kernel))
        elif mode in ("SAME_UPPER", "SAME_LOWER"):
            _same(op, mode, shape[2:], list(kernel))


def _set(op: Op, mode: str, totals: list[int]) -> None:
    """Write down the padding along each axis, whose larger half SAME_UPPER has at the end."""
    small = [t // 2 for t in totals]
    big = [t - t // 2 for t in totals]
    op.attributes.pop("auto_pad", None)
    op.set(pads=[*small, *big] if mode == "SAME_UPPER" else [*big, *small])


def _same(op: Op, mode: str, sizes: tuple[int, ...], kernel: list[int]) -> None:
    """Write down the pads with which the output's size is ⌈input / stride⌉."""
    ones = [1] * len(sizes)
    totals = [
        max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        for size, k, s, d in zip(
            sizes,
            kernel,
            op.attribute("strides", ones),
            op.attribute("dilations", ones),
            strict=True,
        )
    ]
    _set(op, mode, totals)


def _transposed(op: Op, mode: str, sizes: tuple[int, ...], kernel: list[int]) -> None:
    """Set ConvTranspose's pads so that the output has the wanted size (ONNX's definition)."""
    ones = [1] * len(sizes)
    strides = list(op.attribute("strides", ones))
    output_shape = op.attribute("output_shape")
    if output_shape is None and mode == "NOTSET":
        return
    if output_shape is None:
        output_shape = [size * s for size, s in zip(sizes, strides, strict=True)]
    extra = list(op.attribute("output_padding", [0] * len(sizes)))
    full = [
        s * (size - 1) + e + (k - 1) * d + 1
        for size, k, s, d, e in zip(
            sizes, kernel, strides, op.attribute("dilations", ones), extra, strict=True
        )
    ]
    totals = [f - w for f, w in zip(full, list(output_shape)[-len(sizes) :], strict=True)]
    op.attributes.pop("output_shape", None)
    op.set(output_padding=[e + max(-t, 0) for e, t in zip(extra, totals, strict=True)])
    _set(op, mode, [max(t, 0) for t in totals])


def pads_into_convolutions(draft: Draft) -> None:
    """Move zero padding by a Pad node into the pads of the convolution that alone reads it.

    The draft is changed in place.
    """
    uses, outputs = draft.uses(), draft.output_names
    maker = {o: op for op in draft.ops for o in op.outputs}
    gone: set[int] = set()
    for op in draft.ops:
        pad = maker.get(op.inputs[0]) if op.type == "Conv" and not op.domain else None
        if pad is None or pad.type != "Pad" or pad.domain:
            continue
        value = pad.outputs[0]
        around = _zero_padding(draft, pad)
        mode = op.attribute("auto_pad", "NOTSET")
        if around is None or uses[value] != 1 or value in outputs or mode != "NOTSET":
            continue
        own = list(op.attribute("pads", [0] * len(around)))
        op.set(pads=[a + b for a, b in zip(own, around, strict=True)])
        op.inputs[0] = pad.inputs[0]
        op.take_in(pad)
        gone.add(id(pad))
    draft.ops = [op for op in draft.ops if id(op) not in gone]


def _zero_padding(draft: Draft, pad: Op) -> list[int] | None:
    """Return the spatial pads of a Pad by known numbers of zeros; None for any other Pad.

    The numbers are not negative.
    """
    shape = draft.shape(pad.inputs[0])
    if shape is None or pad.attribute("mode", "constant") != "constant":
        return None
    names = [pad.input(i) for i in (1, 2, 3)]
    if any(n and n not in draft.constants for n in names):
        return None
    fill = draft.constants[names[1]] if names[1] else pad.attribute("value", 0.0)
    widths = draft.constants[names[0]].tolist() if names[0] else pad.attribute("pads")
    if widths is None or float(np.asarray(fill).reshape(-1)[0]) != 0.0:
        return None
    rank, half = len(shape), len(widths) // 2
    axes = [int(a) % rank for a in draft.constants[names[2]]] if names[2] else list(range(rank))
    full = [0] * (2 * rank)
    for number, axis in enumerate(axes):
        full[axis], full[rank + axis] = int(widths[number]), int(widths[half + number])
    if min(full) < 0 or any(full[:2]) or any(full[rank : rank + 2]):
        return None
    return [*full[2:rank], *full[rank + 2 :]]
