"""Lowers elementwise functions, broadcasting arithmetic, and operators that move elements.

What moves elements becomes a view where possible, otherwise one copy.
"""

from __future__ import annotations

from collage_engine.records.graph import Node
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.onednn.steps import OneDnnProgram

FUNCTIONS: dict[str, tuple[str, float | str, float | str]] = {
    "nn.relu": ("relu", 0.0, 0.0),
    "sigmoid": ("logistic", 0.0, 0.0),
    "tanh": ("tanh", 0.0, 0.0),
    "exp": ("exp", 0.0, 0.0),
    "log": ("log", 0.0, 0.0),
    "sqrt": ("sqrt", 0.0, 0.0),
    "rsqrt": ("pow", 1.0, -0.5),
    "square": ("square", 0.0, 0.0),
    "abs": ("abs", 0.0, 0.0),
    "negative": ("linear", -1.0, 0.0),
    "round": ("round", 0.0, 0.0),
    "nn.gelu": ("gelu_erf", 0.0, 0.0),
    "nn.gelu_tanh": ("gelu_tanh", 0.0, 0.0),
    "nn.silu": ("swish", 1.0, 0.0),
    "nn.relu6": ("clip", 0.0, 6.0),
    "nn.leakyrelu": ("relu", "alpha", 0.0),
    "nn.softplus": ("soft_relu", "beta", 0.0),
    "clip": ("clip", "min", "max"),
}
"""oneDNN's function, alpha and beta for each Relax operator; a text is the operator's attribute."""

BINARY = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "maximum": "max",
    "minimum": "min",
}
"""oneDNN's algorithm for each Relax operator of two operands."""


def function(plan: OneDnnProgram, node: Node) -> int:
    """Lowers an operator of the table ``FUNCTIONS``."""
    alg, *given = FUNCTIONS[node.op]
    alpha, beta = (float(node.attributes[v] if isinstance(v, str) else v) for v in given)
    return plan.eltwise(plan.tensor(node.inputs[0]), alg, alpha, beta)


def erf(plan: OneDnnProgram, node: Node) -> int:
    """Lowers the error function by GELU, which oneDNN has: ``erf(z/√2) = 2·gelu(z)/z − 1``.

    This is only used for an erf that is not part of a GELU. Adding 1e-30 avoids 0/0 and is lost in
    any other sum; the limits avoid ∞/∞, and float32 has no other value than ±1 from there on.
    """
    limited = plan.eltwise(plan.tensor(node.inputs[0]), "clip", -6.0, 6.0)
    z = plan.eltwise(limited, "linear", 2.0**0.5, 1e-30)
    gate = plan.binary("div", plan.eltwise(z, "gelu_erf"), z)
    return plan.eltwise(gate, "linear", 2.0, -1.0)


def power(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a power with a constant exponent.

    Raises:
        UnsupportedError: The exponent is not constant.
    """
    exponent = plan.scalar(node.inputs[1])
    if exponent is None:
        raise UnsupportedError("Pow: oneDNN needs a constant exponent")
    base = plan.tensor(node.inputs[0])
    if exponent == 2.0:
        return plan.eltwise(base, "square")
    if exponent == 0.5:
        return plan.eltwise(base, "sqrt")
    return plan.eltwise(base, "pow", 1.0, exponent)


def arithmetic(plan: OneDnnProgram, node: Node) -> int:
    """Lowers arithmetic of two operands.

    Where one is a constant scalar, it becomes a linear function or a power of the other.
    """
    left, right = node.inputs
    shape = node.type.shape or (1,)
    for other, at in ((left, right), (right, left)):
        scalar = plan.scalar(at)
        if scalar is None or (plan.graph.values[other].type.shape or (1,)) != shape:
            continue
        scaled = _with_scalar(node.op, scalar, is_first=at == left)
        if scaled is not None:
            return plan.eltwise(plan.tensor(other), *scaled)
    return plan.binary(BINARY[node.op], plan.tensor(left), plan.tensor(right))


def _with_scalar(op: str, scalar: float, *, is_first: bool) -> tuple[str, float, float] | None:
    """Return the function of a tensor that arithmetic with a scalar is; None where it is none."""
    match op:
        case "add":
            return "linear", 1.0, scalar
        case "subtract":
            return ("linear", -1.0, scalar) if is_first else ("linear", 1.0, -scalar)
        case "multiply":
            return "linear", scalar, 0.0
        case "divide" if is_first:
            return "pow", scalar, -1.0
        case "divide" if scalar != 0.0:
            return "linear", 1.0 / scalar, 0.0
        case "maximum" if scalar == 0.0:
            return "relu", 0.0, 0.0
    return None


def reshape(plan: OneDnnProgram, node: Node) -> int:
    """Lowers reshape, expand_dims and squeeze, by the shape of the result."""
    return plan.reshape(plan.tensor(node.inputs[0]), node.type.shape)


def permute(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a transpose."""
    value = plan.tensor(node.inputs[0])
    rank = len(plan.dims[value])
    axes = node.attributes.get("axes")
    order = range(rank - 1, -1, -1) if axes is None else [int(a) % rank for a in axes]
    return plan.permute(value, tuple(order))


def broadcast(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a broadcast to a shape."""
    value = plan.tensor(node.inputs[0])
    shape = node.type.shape
    value = plan.reshape(value, (1,) * (len(shape) - len(plan.dims[value])) + plan.dims[value])
    if plan.dims[value] == shape:
        return value
    return plan.emit("expand", shape, src=value)


def strided_slice(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a slice with positive steps.

    Raises:
        UnsupportedError: A step is negative, or the last one ends beyond its axis.
    """
    value = plan.tensor(node.inputs[0])
    dims = plan.dims[value]
    begin, step = [0] * len(dims), [1] * len(dims)
    axes = [int(a) % len(dims) for a in node.attributes["axes"]]
    strides = node.attributes.get("strides") or [1] * len(axes)
    for axis, first, stride in zip(axes, node.attributes["begin"], strides, strict=True):
        if int(stride) < 1:
            raise UnsupportedError("Slice: oneDNN has no negative strides")
        first = int(first)
        begin[axis] = max(0, first + dims[axis] if first < 0 else first)
        step[axis] = int(stride)
    wide = [n * s for n, s in zip(node.type.shape, step, strict=True)]
    if any(w > d and s > 1 for w, d, s in zip(wide[1:], dims[1:], step[1:], strict=True)):
        # The view's rows would seem to overlap: n·step elements where there are fewer.
        raise UnsupportedError("Slice: a last step that ends beyond the axis")
    return plan.emit("slice", node.type.shape, src=value, begin=begin, step=step)


def take(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a gather with one constant index as a slice, since oneDNN has no gather.

    Raises:
        UnsupportedError: The index is not one constant, or there is no axis.
    """
    index = plan.graph.values[node.inputs[1]]
    if not index.constant or index.type.elements != 1:
        raise UnsupportedError("Gather: oneDNN takes one constant index only")
    value = plan.tensor(node.inputs[0])
    dims = plan.dims[value]
    axis = node.attributes.get("axis")
    if axis is None:
        raise UnsupportedError("Gather: oneDNN takes along one axis only")
    axis = int(axis) % len(dims)
    chosen = plan.array(index.index)
    at = 0 if chosen is None else int(chosen.reshape(())) % dims[axis]
    kept = [1 if d == axis else e for d, e in enumerate(dims)]
    return plan.reshape(plan.slice(value, kept, {axis: at}), node.type.shape)


def split_field(plan: OneDnnProgram, node: Node, field: int) -> int:
    """Lowers one part of a split."""
    value = plan.tensor(node.inputs[0])
    axis = int(node.attributes["axis"]) % len(plan.dims[value])
    begin = sum(t.shape[axis] for t in node.types[:field])
    return plan.slice(value, node.types[field].shape, {axis: begin})


def concat(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a concatenation."""
    values = [plan.tensor(i) for i in node.inputs]
    if len(values) == 1:
        return values[0]
    axis = int(node.attributes.get("axis") or 0) % len(node.type.shape)
    return plan.emit("concat", node.type.shape, srcs=values, axis=axis)


ELEMENTS = {
    **dict.fromkeys(FUNCTIONS, function),
    **dict.fromkeys(BINARY, arithmetic),
    "erf": erf,
    "power": power,
    **dict.fromkeys(("reshape", "expand_dims", "squeeze"), reshape),
    "permute_dims": permute,
    "broadcast_to": broadcast,
    "strided_slice": strided_slice,
    "take": take,
    "concat": concat,
}
"""The function that lowers each of these Relax operators."""
