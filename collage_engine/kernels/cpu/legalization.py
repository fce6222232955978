"""Legalises operators as computations that our rules write, the others as TVM does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.ir import Call, Expr, Op, Tuple
from tvm.ir.prim import expr as prim

from collage_engine.kernels.cpu.convolution import NO_KERNEL, ConvProblem, described
from collage_engine.kernels.cpu.quantization import quantize
from collage_engine.kernels.cpu.runtime_matmul import RuntimeMatmul
from collage_engine.kernels.relax_values import (
    ANCHOR,
    FLOATS,
    const,
    constant_of,
    dtype_of,
    narrowed,
    static_shape,
    widened,
)
from collage_engine.kernels.rule import Decision
from collage_engine.kernels.scheduler import decide
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Index


def legalize_normalisation(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
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
    """Return (x − mean) / sqrt(variance + epsilon) · gamma + beta, by image and group.

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

    def result(n: Index, c: Index, *position: Index) -> Expr:
        group = c if each == 1 else tirx.floordiv(c, each)
        return (x(n, c, *position) - mean[n, group]) * inverse[n, group] * gamma(c) + beta(c)

    return te.compute(shape, result, name="normalised")


def legalize_convolution(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
    """Return the convolution with its weight packed, or None when it is not one of ours."""
    description = described(call)
    decision = None if description is None else decide(description[0], cpu)
    if description is None or decision is None:
        return None
    problem, weight = description
    operands = call.args[0], const(decision.pack(cpu, weight))
    return _written(builder, call, decision, operands, f"conv{problem.dims}d")


def legalize_product(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
    """Return the product as a computation that our rules know, or None.

    A constant right operand that is one matrix is packed; operands in half precision are
    multiplied in single precision.
    """
    left, right = call.args
    a, b, out = static_shape(left), static_shape(right), static_shape(call)
    if a is None or b is None or out is None or len(a) < 2 or len(b) < 2:
        return None
    dtype = dtype_of(call)
    if dtype not in FLOATS or not dtype_of(left) == dtype_of(right) == dtype:
        return None
    problem: ConvProblem | RuntimeMatmul
    array = constant_of(right)
    if array is not None and all(e == 1 for e in b[:-2]) and len(a) >= len(b):
        rows, (depth, columns) = prod(a[:-1]), b[-2:]
        problem = ConvProblem(True, (rows, depth), (rows, columns), (columns, depth), *NO_KERNEL)
        array = array.reshape(depth, columns).T
    else:
        array, problem = None, RuntimeMatmul(a, b, out)
    decision = decide(problem, cpu)
    if decision is None:
        return None
    if array is not None:
        right = const(decision.pack(cpu, array))
    return _written(builder, call, decision, (left, right), "matmul")


def _written(
    builder: relax.BlockBuilder,
    call: Call,
    decision: Decision[Any, Any],
    operands: tuple[Expr, Expr],
    name: str,
) -> Expr:
    """Return a product as the computation that a rule writes."""
    dtype = dtype_of(call)

    def reference(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        return narrowed(decision.reference(widened(x), widened(y)), dtype)

    def make() -> Expr:
        return builder.call_te(reference, *operands, primfunc_name_hint=name, primfunc_attrs=ANCHOR)

    shapes = tuple((static_shape(each), dtype_of(each)) for each in operands)
    return _made_once(builder, (name, decision, dtype, shapes), operands, make)


Legalize = Callable[[Any, Call], Expr]


def default(builder: relax.BlockBuilder, call: Call) -> Expr:
    """Legalises a call as TVM itself does."""
    operands = tuple(call.args)
    return _made_once(
        builder, _key(call), operands, lambda: call.op.get_attr("FLegalize")(builder, call)
    )


def _key(call: Call) -> object | None:
    """Return what decides about TVM's PrimFunc for a call; None: more than is looked at here."""
    parts: list[object] = [call.op.name, call.attrs and tvm_ffi.structural_hash(call.attrs)]
    for operand in call.args:
        if isinstance(operand, relax.ShapeExpr):
            parts.append(str(operand))
            continue
        shape, array = static_shape(operand), constant_of(operand)
        if shape is None:
            return None
        # A scalar becomes a number in the PrimFunc.
        value = array.tobytes() if array is not None and array.ndim == 0 else None
        parts.append((shape, dtype_of(operand), array is None, value))
    return tuple(parts)


MOST_MADE = 4096
"""PrimFuncs that are kept for equal calls, at most; chosen: a model has some hundred different
ones, and one takes some 10 kB."""
_made: dict[object, tuple[tirx.PrimFunc, str, list[int], Any, Any]] = {}
"""PrimFuncs by what decides about them, with their names, the positions of the operands that they
take, and attributes and types of their calls."""


def _made_once(
    builder: relax.BlockBuilder,
    key: object | None,
    operands: Sequence[Expr],
    make: Callable[[], Expr],
) -> Expr:
    """Return a call of a PrimFunc, which takes a millisecond to make and is kept for equal calls.

    Args:
        builder: The builder of the module that calls it.
        key: What decides about the PrimFunc, beside the values of scalars, which are in it; None:
            it is not known.
        operands: What the call takes.
        make: Makes the PrimFunc and returns its call.
    """
    kept = _made.get(key) if key is not None else None
    if kept is not None:
        function, name, positions, attributes, types = kept
        taken = Tuple([operands[k] for k in positions])
        return Call(CALL_TIR, [builder.add_func(function, name), taken], attributes, types)
    call = make()
    if key is None or not isinstance(call, Call) or call.op != CALL_TIR or len(call.args) != 2:
        return call
    fields = list(call.args[1].fields)
    positions = [k for f in fields for k, e in enumerate(operands) if e.same_as(f)]
    inside = {k for k, e in enumerate(operands) if getattr(constant_of(e), "ndim", 0)}
    if len(positions) == len(fields) and inside <= {*positions}:
        if len(_made) >= MOST_MADE:
            _made.clear()
        callee = call.args[0]
        name = str(callee.name_hint).rstrip("0123456789")
        _made[key] = builder.get()[callee], name, positions, call.attrs, call.ty_args
    return call


CALL_TIR = Op.get("relax.call_tir")


def _sign(builder: relax.BlockBuilder, call: Call, _: Cpu) -> Expr:
    """Legalise a sign: 1, -1, or the value itself, which is zero or NaN; TVM's own makes NaN 0."""

    def sign(x: te.Tensor) -> te.Tensor:
        zero, positive, negative = (tirx.const(k, x.dtype) for k in (0, 1, -1))

        def of(value: Expr) -> Expr:
            below = prim.Select(value < zero, negative, value)
            return prim.Select(value > zero, positive, below)

        return te.compute(x.shape, lambda *i: of(x(*i)), name="sign")

    return builder.call_te(sign, *call.args, primfunc_name_hint="sign")


def _not(builder: relax.BlockBuilder, call: Call, _: Cpu) -> Expr:
    """Legalise a negation: TVM simplifies that of a comparison to another one, untrue of NaN."""

    def negated(x: te.Tensor) -> te.Tensor:
        one = tirx.const(1, "int8")
        return te.compute(x.shape, lambda *i: x(*i).astype("int8") < one, name="negated")

    return builder.call_te(negated, *call.args, primfunc_name_hint="logical_not")


def _position(builder: relax.BlockBuilder, call: Call, _: Cpu) -> Expr:
    """Legalise an ArgMax or ArgMin: where nothing exceeds what TVM begins with, it gives -1.

    The first value is the right one then: all are as small as the type has them.
    """
    find = {"relax.argmax": topi.argmax, "relax.argmin": topi.argmin}[call.op.name]

    def position(x: te.Tensor) -> te.Tensor:
        index = find(x, call.attrs.axis, call.attrs.keepdims)
        return topi.maximum(index, tirx.const(0, index.dtype))

    return builder.call_te(position, *call.args, primfunc_name_hint=call.op.name.split(".")[1])


@cache
def legalization(cpu: Cpu) -> tvm.transform.Pass:
    """Return TVM's pass with our legalisations, which falls back to TVM's own."""
    own: dict[str, Any] = {
        "relax.nn.conv1d": legalize_convolution,
        "relax.nn.conv2d": legalize_convolution,
        "relax.nn.conv3d": legalize_convolution,
        "relax.matmul": legalize_product,
        "relax.quantize": quantize,
        "relax.sign": _sign,
        "relax.argmax": _position,
        "relax.argmin": _position,
        "relax.logical_not": _not,
        "relax.nn.instance_norm": legalize_normalisation,
        "relax.nn.group_norm": legalize_normalisation,
    }

    def bind(function: Any) -> Legalize:
        def legalize(builder: relax.BlockBuilder, call: Call) -> Expr:
            result = function(builder, call, cpu)
            return default(builder, call) if result is None else result

        return legalize

    by_name: dict[str, Legalize] = {
        name: default for name in Op.list_op_names() if Op.get(name).has_attr("FLegalize")
    }
    by_name |= {name: bind(function) for name, function in own.items()}
    return relax.transform.LegalizeOps(by_name)
