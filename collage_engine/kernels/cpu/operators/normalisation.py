"""Writes normalisations as plain sums, which fuse; TVM's own compute two sums in one block."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import Call, Expr

from collage_engine.kernels.relax_values import dtype_of, static_shape
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Index


def legalize(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
    """Legalises instance and group normalisation of float32 tensors.

    Returns:
        The tensor normalised over all axes behind the channels; None for other element types, axes
        and layouts.
    """
    data, gamma, beta = call.args
    shape = static_shape(data)
    attributes = call.attrs
    if shape is None or dtype_of(data) != "float32":
        return None
    channel = int(attributes.channel_axis) % len(shape)
    axes = sorted(int(a) % len(shape) for a in attributes.axes)
    if channel != 1 or axes != list(range(2, len(shape))):
        return None
    groups = int(attributes.num_groups) if hasattr(attributes, "num_groups") else shape[1]
    epsilon = float(attributes.epsilon)
    # TVM applies both operands whatever the attributes "scale" and "center" say.
    return builder.call_te(
        lambda x, g, b: normalised(x, g, b, shape, groups, epsilon),
        data,
        gamma,
        beta,
        primfunc_name_hint="normalise",
    )


def normalised(
    x: Any, gamma: Any, beta: Any, shape: tuple[int, ...], groups: int, epsilon: float
) -> Any:
    """Returns (x − mean) / sqrt(variance + epsilon) · gamma + beta, by image and group.

    Args:
        x: The data: [batch, channels, *spatial].
        gamma: Factors: [channels].
        beta: Summands: [channels].
        shape: The data's shape.
        groups: Groups of channels with statistics of their own.
        epsilon: What is added to the variance.
    """
    batch, channels, *size = shape
    each = channels // groups
    count = each * prod(size)

    def axes() -> list[Any]:
        inner = [te.reduce_axis((0, e), f"r{i}") for i, e in enumerate(size)]
        return [te.reduce_axis((0, each), "rc"), *inner]

    def element(n: Index, g: Index, over: list[Any]) -> Expr:
        c = g if each == 1 else g * each + over[0]
        return x(n, c, *over[1:])

    first, second = axes(), axes()
    total = te.compute(
        (batch, groups), lambda n, g: te.sum(element(n, g, first), axis=first), name="total"
    )
    mean = te.compute(
        (batch, groups), lambda n, g: total[n, g] * tirx.const(1 / count, "float32"), name="mean"
    )

    def squared(n: Index, g: Index) -> Expr:
        distance = element(n, g, second) - mean[n, g]
        return te.sum(distance * distance, axis=second)

    spread = te.compute((batch, groups), squared, name="spread")

    def factor(n: Index, g: Index) -> Expr:
        variance = spread[n, g] * tirx.const(1 / count, "float32")
        return tirx.const(1, "float32") / tirx.sqrt(variance + tirx.const(epsilon, "float32"))

    inverse = te.compute((batch, groups), factor, name="inverse")

    def result(n: Index, c: Index, *place: Index) -> Expr:
        group = c if each == 1 else tirx.floordiv(c, each)
        return (x(n, c, *place) - mean[n, group]) * inverse[n, group] * gamma(c) + beta(c)

    return te.compute(shape, result, name="normalised")
