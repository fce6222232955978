"""Lowers matrix products, reductions, softmax and normalisation."""

from __future__ import annotations

import numpy as np

from collage_engine.records.graph import Node
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.onednn.spatial import global_pool
from collage_engine.toolchains.onednn.steps import OneDnnProgram


def matmul(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a matrix product of any ranks.

    Vectors become matrices, and missing batch axes get extent one.
    """
    left, right = plan.tensor(node.inputs[0]), plan.weights(node)
    if len(plan.graph.values[node.inputs[0]].type.shape) == 1:
        left = plan.reshape(left, (1, *plan.dims[left]))
    if len(plan.graph.values[node.inputs[1]].type.shape) == 1:
        right = plan.reshape(right, (*plan.dims[right], 1))
    rank = max(len(plan.dims[left]), len(plan.dims[right]))
    left, right = (
        plan.reshape(v, (1,) * (rank - len(plan.dims[v])) + plan.dims[v]) for v in (left, right)
    )
    a, b = plan.dims[left], plan.dims[right]
    batch = tuple(max(p, q) for p, q in zip(a[:-2], b[:-2], strict=True))
    out = plan.emit("matmul", (*batch, a[-2], b[-1]), src=left, weights=right)
    return plan.reshape(out, node.type.shape)


REDUCTIONS = {"mean": "mean", "sum": "sum", "max": "max", "min": "min", "prod": "mul"}
"""The name of oneDNN's algorithm for each Relax reduction."""


def _reduced(node: Node, rank: int) -> list[int]:
    """Return the axes over which a node reduces a value of so many axes, ascending."""
    axes = node.attributes.get("axis")
    axes = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
    return sorted({int(a) % rank for a in axes})


def reduce(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a reduction; over all axes of space it becomes a pooling."""
    value = plan.tensor(node.inputs[0])
    dims = plan.dims[value]
    chosen = _reduced(node, len(dims))
    if all(dims[a] == 1 for a in chosen):
        return plan.reshape(value, node.type.shape)
    if 3 <= len(dims) <= 5 and chosen == list(range(2, len(dims))) and node.op in ("mean", "max"):
        out = global_pool(plan, value, "avg" if node.op == "mean" else "max")
    else:
        kept = tuple(1 if d in chosen else e for d, e in enumerate(dims))
        out = plan.emit("reduce", kept, src=value, alg=REDUCTIONS[node.op])
    return plan.reshape(out, node.type.shape)


def softmax(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a softmax or its logarithm."""
    value = plan.tensor(node.inputs[0])
    rank = len(plan.dims[value])
    axis = int(node.attributes.get("axis", -1)) % rank
    log = int(node.op == "nn.log_softmax")
    return plan.emit("softmax", plan.dims[value], src=value, axis=axis, log=log)


def layer_norm(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a layer normalisation over the last axes; several axes are flattened into one."""
    value = plan.tensor(node.inputs[0])
    dims = plan.dims[value]
    axes = sorted(int(a) % len(dims) for a in node.attributes["axes"])
    if axes != list(range(len(dims) - len(axes), len(dims))):
        raise UnsupportedError("layer_norm: oneDNN normalises over the last axes only")
    extent = int(np.prod([dims[a] for a in axes]))
    rows = int(np.prod(dims)) // extent
    flat = plan.reshape(value, dims if len(axes) == 1 and len(dims) > 1 else (rows, extent))
    # TVM applies both whatever the attributes "scale" and "center" say.
    scale, shift = (plan.reshape(plan.tensor(i), (extent,)) for i in node.inputs[1:3])
    epsilon = float(node.attributes["epsilon"])
    fields = {"epsilon": epsilon, "scale": scale, "shift": shift}
    return plan.reshape(plan.emit("layer_norm", plan.dims[flat], src=flat, **fields), dims)


def variance(plan: OneDnnProgram, node: Node) -> int:
    """Lowers the mean of the squared distances from the mean."""
    value = plan.tensor(node.inputs[0])
    dims = plan.dims[value]
    kept = tuple(1 if d in _reduced(node, len(dims)) else e for d, e in enumerate(dims))
    mean = plan.emit("reduce", kept, src=value, alg="mean")
    squared = plan.eltwise(plan.binary("sub", value, mean), "square")
    return plan.reshape(plan.emit("reduce", kept, src=squared, alg="mean"), node.type.shape)


LINEAR = {
    "matmul": matmul,
    **dict.fromkeys(REDUCTIONS, reduce),
    "variance": variance,
    "nn.softmax": softmax,
    "nn.log_softmax": softmax,
    "nn.layer_norm": layer_norm,
}
"""The function that lowers each of these Relax operators."""
