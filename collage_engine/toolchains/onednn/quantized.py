"""Lowers quantised composites to single 8-bit steps.

Partition/quantized.py recognises them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition import quantized
from collage_engine.partition.patterns import anything
from collage_engine.partition.quantized import Quantized
from collage_engine.partition.quantized_numbers import Numbers, Scaling
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.toolchains.onednn.composites import Composite
from collage_engine.toolchains.onednn.pointwise import BINARY, FUNCTIONS
from collage_engine.toolchains.onednn.quantized_scales import Lower, entry, rescale, single
from collage_engine.toolchains.onednn.shaping import SHAPING
from collage_engine.toolchains.onednn.spatial import SPATIAL, convolve, image
from collage_engine.toolchains.onednn.steps import OneDnnProgram, PostOp
from collage_engine.toolchains.runtime.claims import Claim


def within(
    graph: DataflowGraph, nodes: NodeSet, leaving: NodeSet
) -> dict[NodeIndex, Claim[Composite]]:
    """Returns the quantised composites in a set of nodes, by their root.

    Returns:
        Claims of composites that the plan generator lowers.
    """
    calls = graph.to_indices(graph.to_operators(nodes))
    return {
        root: Claim(
            Composite(
                f"quantized_{each.kind}",
                anything(),
                partial(_build, each, each.nodes == calls),
            ),
            each.match,
            each.nodes,
        )
        for root, each in quantized.within(graph, nodes, leaving).items()
    }


def _build(found: Quantized, alone: bool, plan: OneDnnProgram, _match: object) -> int | None:
    """Return one 8-bit step, or None for what is better computed in float32, operator by operator.

    What 8 bits cannot hold is refused where the composite is the whole function; in a larger one
    it is computed in float32.
    """
    constants = plan.constants_of
    if constants is None:
        return None
    numbers = Numbers(plan.graph, found, constants)
    result = numbers.result
    if result is not None and not result.per_tensor:
        return None
    operands = [n for n in ("data", "residual", "left", "right") if f"{n}_float" in found]
    if not all(numbers.of(n).per_tensor for n in operands):
        return None
    try:
        return _KINDS[found.kind](plan, numbers, found, result)
    except UnsupportedError:
        if alone:
            raise
        return None


# Convolutions and products -----------------------------------------------------------------------


def _activation(node: Node) -> PostOp:
    if node.op == "clip":
        return PostOp(
            "eltwise", "clip", float(node.attributes["min"]), float(node.attributes["max"])
        )
    if node.op == "nn.leakyrelu":
        return PostOp("eltwise", "relu", float(node.attributes["alpha"]))
    return PostOp("eltwise", *FUNCTIONS[node.op])


def _saturates(numbers: Numbers, result: Scaling | None) -> bool:
    """Tell whether rounding to the result's range already does what the activation does."""
    limits = numbers.clamp()
    if limits is None or result is None:
        return limits == (-np.inf, np.inf)
    scale, zero = result.single("the result")
    low, high = (np.clip(np.round(v / scale) + zero, -1e9, 1e9) for v in limits)
    return bool(low <= result.lowest and high >= result.highest)


def _posts(
    plan: OneDnnProgram, numbers: Numbers, found: Quantized, result: Scaling | None, layout: str
) -> list[PostOp]:
    posts = []
    if "residual" in found:
        value = plan.tensor(found["residual"])
        if layout:
            value, _ = image(plan, plan.graph.nodes[found["anchor"]], layout, value)
        scale, zero = numbers.of("residual").single("the residual")
        posts.append(PostOp("binary", "add", value=value, scale=scale, zero=zero))
    if "activation" in found and not _saturates(numbers, result):
        posts.append(_activation(plan.graph.nodes[found["activation"]]))
    return posts


def _result(plan: OneDnnProgram, result: Scaling | None) -> tuple[str, list[dict[str, Any]]]:
    """Returns the type of a step's result, and its scale."""
    return ("float32", []) if result is None else (result.dtype, [single(plan, "dst", result)])


def _fields(
    plan: OneDnnProgram, numbers: Numbers, bias: np.ndarray | None, rank: int
) -> dict[str, Any]:
    if bias is None:
        return {}
    dims = bias.shape if not rank else (1,) * (rank - 1) + bias.shape
    return {"bias": plan.constant(bias.reshape(dims))}


def _conv(
    plan: OneDnnProgram, numbers: Numbers, found: Quantized, result: Scaling | None
) -> int | None:
    node = plan.graph.nodes[found["anchor"]]
    layout = str(node.attributes.get("data_layout", "NCHW"))
    weights, scales = numbers.weights()
    fields = _fields(plan, numbers, numbers.bias(), 0)
    posts = _posts(plan, numbers, found, result, layout)
    dtype, scaling = _result(plan, result)
    grouped = int(node.attributes.get("groups", 1)) > 1
    scaling += [
        single(plan, "src", numbers.of("data")),
        entry(plan, "weights", scales, 0, 3 if grouped else 1),
    ]
    out = convolve(
        plan,
        node,
        plan.tensor(found["data"]),
        plan.constant(weights, "int8"),
        dtype=dtype,
        scaling=scaling,
        **fields,
    )
    step = next(s for s in reversed(plan.steps) if s.op == "conv")
    step.posts.extend(posts)
    return out


def _matmul(
    plan: OneDnnProgram, numbers: Numbers, found: Quantized, result: Scaling | None
) -> int | None:
    node = plan.graph.nodes[found["anchor"]]
    data = plan.tensor(found["data"])
    if "weights" not in found:
        return _runtime_product(plan, numbers, found, result)
    weights, scales = numbers.weights()
    if weights.ndim != 2 or len(plan.dims[data]) < 2:
        return None
    columns = weights.shape[1]
    rows = int(np.prod(plan.dims[data])) // weights.shape[0]
    fields = _fields(plan, numbers, numbers.bias(), 2)
    posts = _posts(plan, numbers, found, result, "")
    for post in posts:
        if post.kind == "binary":
            if plan.dims[post.value] != node.type.shape:
                return None
            post.value = plan.reshape(post.value, (rows, columns))
    dtype, scaling = _result(plan, result)
    scaling += [
        single(plan, "src", numbers.of("data")),
        entry(plan, "weights", scales, 0, 2),
    ]
    out = plan.emit(
        "matmul",
        (rows, columns),
        dtype=dtype,
        src=plan.reshape(data, (rows, weights.shape[0])),
        weights=plan.constant(weights, "int8"),
        scaling=scaling,
        **fields,
    )
    plan.steps[-1].posts.extend(posts)
    return plan.reshape(out, node.type.shape)


def _runtime_product(
    plan: OneDnnProgram, numbers: Numbers, found: Quantized, result: Scaling | None
) -> int | None:
    """Lowers an 8-bit product of two values that are known only at run time.

    Returns:
        The value of the result; None where oneDNN has no such product: it wants the right operand
        signed and without a zero point.
    """
    node = plan.graph.nodes[found["anchor"]]
    right = numbers.of("right")
    scale, zero = right.single("the right operand")
    left_value, right_value = plan.tensor(found["data"]), plan.tensor(found["right"])
    a, b = plan.dims[left_value], plan.dims[right_value]
    if right.dtype != "int8" or zero or len(a) != len(b) or len(a) < 2 or a[:-2] != b[:-2]:
        return None
    posts = _posts(plan, numbers, found, result, "")
    dtype, scaling = _result(plan, result)
    scaling += [single(plan, "src", numbers.of("data")), entry(plan, "weights", scale)]
    out = plan.emit(
        "matmul",
        node.type.shape,
        dtype=dtype,
        src=left_value,
        weights=right_value,
        scaling=scaling,
    )
    plan.steps[-1].posts.extend(posts)
    return out


# Everything else ---------------------------------------------------------------------------------


def _binary(
    plan: OneDnnProgram, numbers: Numbers, found: Quantized, result: Scaling | None
) -> int | None:
    node = plan.graph.nodes[found["anchor"]]
    left, right = plan.tensor(found["left"]), plan.tensor(found["right"])
    if result is None or plan.dims[left] != plan.dims[right] or left == right:
        return None
    a, a_zero = numbers.of("left").single("the left operand")
    b, b_zero = numbers.of("right").single("the right operand")
    scale, zero = result.single("the result")
    if node.op == "multiply":
        if a_zero or b_zero:
            return None
        offset = 0.0
    else:
        offset = -a * a_zero - (b if node.op == "add" else -b) * b_zero
    posts = []
    if "activation" in found and not _saturates(numbers, result):
        if offset:
            posts.append(PostOp("eltwise", "linear", 1.0, offset))
        posts.append(_activation(plan.graph.nodes[found["activation"]]))
        offset = 0.0
    posts.append(PostOp("eltwise", "linear", 1.0 / scale, offset / scale + zero))
    scaling = [entry(plan, "src", a), entry(plan, "other", b)]
    out = plan.emit(
        "small_binary",
        node.type.shape,
        dtype=result.dtype,
        alg=BINARY[node.op],
        src=left,
        other=right,
        scaling=scaling,
    )
    plan.steps[-1].posts.extend(posts)
    return out


def _as_integers(plan: OneDnnProgram, found: Quantized, names: list[str], lower: Lower) -> int:
    """Return the operator itself on the 8-bit values: nobody else reads the float ones."""
    for name in names:
        plan.of_node[found[f"{name}_float"]] = plan.tensor(found[name])
    return lower(plan, plan.graph.nodes[found["anchor"]])


def _pool(
    plan: OneDnnProgram, numbers: Numbers, found: Quantized, result: Scaling | None
) -> int | None:
    node = plan.graph.nodes[found["anchor"]]
    data = numbers.of("data")
    if node.op not in SPATIAL or (node.op.startswith("nn.adaptive") and "max" not in node.op):
        return None
    if "avg" in node.op and (result is None or not data.equals(result) or _counts_padding(node)):
        return None
    return rescale(plan, _as_integers(plan, found, ["data"], SPATIAL[node.op]), data, result)


def _counts_padding(node: Node) -> bool:
    pads = node.attributes["padding"]
    padded = any(int(v) for v in (pads if isinstance(pads, list) else [pads]))
    return padded and bool(node.attributes.get("count_include_pad"))


def _view(
    plan: OneDnnProgram, numbers: Numbers, found: Quantized, result: Scaling | None
) -> int | None:
    node = plan.graph.nodes[found["anchor"]]
    value = _as_integers(plan, found, ["data"], SHAPING[node.op])
    return rescale(plan, value, numbers.of("data"), result)


def _concat(
    plan: OneDnnProgram, numbers: Numbers, found: Quantized, result: Scaling | None
) -> int | None:
    names = [f"part{i}" for i in range(quantized.MOST_CONCATENATED) if f"part{i}" in found]
    parts = [numbers.of(name) for name in names]
    if result is None or not all(p.per_tensor for p in parts):
        return None
    node = plan.graph.nodes[found["anchor"]]
    values = [
        rescale(plan, plan.tensor(found[name]), given, result)
        for name, given in zip(names, parts, strict=True)
    ]
    axis = int(node.attributes.get("axis") or 0) % len(node.type.shape)
    return plan.emit("concat", node.type.shape, srcs=values, axis=axis)


def _unary(
    plan: OneDnnProgram, numbers: Numbers, found: Quantized, result: Scaling | None
) -> int | None:
    """Return an activation that saturation does; the anchor is the activation here."""
    as_activation = Quantized(
        found.kind,
        type(found.match)(
            found.match.root,
            found.match.nodes,
            {**found.match.bindings, "activation": found["anchor"]},
        ),
        found.nodes,
    )
    if not _saturates(Numbers(plan.graph, as_activation, numbers.constants), result):
        return None
    return rescale(plan, plan.tensor(found["data"]), numbers.of("data"), result)


def _requantize(
    plan: OneDnnProgram, numbers: Numbers, found: Quantized, result: Scaling | None
) -> int | None:
    return rescale(plan, plan.tensor(found["data"]), numbers.of("data"), result)


_KINDS: dict[str, Callable[[OneDnnProgram, Numbers, Quantized, Scaling | None], int | None]] = {
    "conv": _conv,
    "matmul": _matmul,
    "binary": _binary,
    "pool": _pool,
    "view": _view,
    "concat": _concat,
    "unary": _unary,
    "requantize": _requantize,
}
