"""Draws random inputs that a model can digest: normal floats, integers in range, texts."""

from __future__ import annotations

import hashlib

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.numpy_types import numpy_type
from collage_engine.records.graph import TensorType

WORDS = np.array([b"a", b"collage", b"monday", "naïve".encode(), b"x@example.org", b"two words"])
"""Texts that inputs are drawn from; chosen: short ones of several kinds."""
_HAND_ON = {
    "astype",
    "broadcast_to",
    "concat",
    "expand_dims",
    "maximum",
    "minimum",
    "permute_dims",
    "reshape",
    "split",
    "squeeze",
    "strided_slice",
    "tile",
    "where",
}


def _index_limit(graph: DataflowGraph, start: int) -> int | None:
    """Returns the smallest extent that a parameter's value indexes into; None if there is none."""
    limit: int | None = None
    seen = {start}
    stack = [start]
    while stack:
        current = stack.pop()
        for user in graph.users[current]:
            node = graph.nodes[user]
            extent = None
            if node.op == "take" and node.inputs[1] == current:
                axis = node.attributes.get("axis")
                table = graph.nodes[node.inputs[0]].type
                extent = table.elements if axis is None else table.shape[axis]
            elif node.op == "gather_elements" and node.inputs[1] == current:
                table = graph.nodes[node.inputs[0]].type
                extent = table.shape[node.attributes["axis"]]
            elif node.op in ("gather_nd", "scatter_nd", "scatter_elements"):
                if node.inputs[1] == current:
                    extent = min(graph.nodes[node.inputs[0]].type.shape, default=1)
            elif node.op == "one_hot":
                extent = node.attributes["depth"]
            elif (node.op in _HAND_ON or node.form in ("tuple", "projection")) and (
                user not in seen
            ):
                seen.add(user)
                stack.append(user)
            if extent is not None:
                limit = extent if limit is None else min(limit, extent)
    return limit


def random_inputs(
    graph: DataflowGraph, inputs: tuple[tuple[str, TensorType], ...], seed: int
) -> dict[str, np.ndarray]:
    """Return one array per input, the same for the same seed and name.

    Integers that index something stay within it; other wide integers are 0 or 1 (masks,
    lengths); 8-bit ones take all their values.
    """
    made = {}
    for (name, kind), index in zip(inputs, graph.record.inputs, strict=True):
        word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
        random = np.random.default_rng([seed, word])
        values: np.ndarray
        if kind.dtype == "string":
            values = random.choice(WORDS, kind.shape)
        elif kind.dtype == "bool":
            values = random.random(kind.shape) < 0.5
        elif kind.dtype.startswith(("int", "uint")):
            limit = _index_limit(graph, index)
            if limit is not None:
                values = random.integers(0, max(limit, 1), kind.shape)
            elif kind.dtype in ("int8", "uint8"):
                bounds = np.iinfo(kind.dtype)
                values = random.integers(bounds.min, bounds.max + 1, kind.shape)
            else:
                values = random.integers(0, 2, kind.shape)
        else:
            values = random.standard_normal(kind.shape, dtype=np.float32)
        made[name] = np.asarray(values).astype(numpy_type(kind.dtype))
    return made
