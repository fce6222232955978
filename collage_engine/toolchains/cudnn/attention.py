"""Attention written out as products and a softmax, recognised and given to one cuDNN engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import IndexSet, members
from collage_engine.partition.patterns import Match, Pattern, all_matches, anything, constant, op
from collage_engine.toolchains.cudnn.plan import Plan

HALF = ("float16", "bfloat16")
HEAD_MULTIPLE = 8
LARGEST_HEAD = 256


@dataclass(frozen=True)
class Attention:
    """A match; ``nodes`` holds its calls only."""

    match: Match
    root: int
    nodes: IndexSet


def pattern() -> Pattern:
    """``softmax(q · kᵀ · scale + bias) · v``, scale and bias optional."""
    keys = op("permute_dims", anything("k"), commutative=False, name="swap")
    scores = op("matmul", anything("q"), keys, commutative=False)
    scaled = (
        op("multiply", scores, constant("scale", scalar=True))
        | op("divide", scores, constant("divisor", scalar=True), commutative=False)
        | scores
    )
    masked = scaled.optional(lambda x: op("add", x, anything("bias")))
    weights = op("nn.softmax", masked, commutative=False, name="softmax")
    return op("matmul", weights, anything("v"), commutative=False)


_PATTERN = pattern()


def reason_against(graph: DataflowGraph, match: Match) -> str | None:
    """Why a match is no attention that cuDNN has an engine for."""
    q, k, v = (graph.nodes[match.bindings[name]].type for name in "qkv")
    if q.dtype not in HALF:
        return f"attention: cuDNN has engines for half precision only, not {q.dtype}"
    if any(len(kind.shape) != 4 for kind in (q, k, v)):
        return "attention: not batch, heads, sequence, size"
    axes = graph.nodes[match.bindings["swap"]].attributes.get("axes")
    if [int(a) % 4 for a in axes or ()] != [0, 1, 3, 2]:
        return "attention: keys that are transposed otherwise"
    if int(graph.nodes[match.bindings["softmax"]].attributes.get("axis", -1)) % 4 != 3:
        return "attention: softmax over another axis"
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        return "attention: queries, keys and values of different heads"
    if any(size % HEAD_MULTIPLE or size > LARGEST_HEAD for size in (q.shape[3], v.shape[3])):
        return f"attention: heads of {q.shape[3]} elements"
    if "bias" in match.bindings:
        bias = graph.nodes[match.bindings["bias"]].type
        full = (*q.shape[:3], k.shape[2])
        padded = (1,) * (4 - len(bias.shape)) + tuple(bias.shape)
        if len(bias.shape) > 4 or any(b not in (1, f) for b, f in zip(padded, full, strict=True)):
            return "attention: a mask of another shape"
        if padded[2:] != full[2:]:
            return "attention: a mask that is repeated along the sequence"
    return None


def within(graph: DataflowGraph, nodes: IndexSet, leaving: IndexSet) -> Iterator[Attention]:
    """Attentions that lie in a set, closed but for their result."""
    for root in members(nodes):
        if graph.nodes[root].op != "matmul":
            continue
        for match in all_matches(graph, _PATTERN, root):
            calls = sum(1 << i for i in members(match.nodes) if graph.nodes[i].form == "call")
            hidden = calls & ~(1 << root)
            if calls & ~nodes or hidden & leaving or reason_against(graph, match) is not None:
                continue
            if all(all(calls >> u & 1 for u in graph.users[i]) for i in members(hidden)):
                yield Attention(match, root, calls)
                break


def emit(plan: Plan, found: Attention) -> None:
    """One step. A mask is added after scaling, as in the pattern."""
    bindings = found.match.bindings
    q, k, v = (plan.view(bindings[name]) for name in "qkv")
    scale = 1.0
    if "scale" in bindings:
        scale = float(np.asarray(plan.constants(bindings["scale"])).reshape(()))
    elif "divisor" in bindings:
        divisor = float(np.asarray(plan.constants(bindings["divisor"])).reshape(()))
        scale = 1.0 / divisor if divisor else 1.0  # a dry plan has no values
    fields = {}
    if "bias" in bindings:
        fields["bias"] = plan.view(bindings["bias"]).widened(4).as_json()
    y = plan.result(found.root)
    node = plan.graph.nodes[found.root]
    plan.emit(
        "attention", node.name or f"attention {found.root}", q=q.as_json(), k=k.as_json(),
        v=v.as_json(), y=y.as_json(), scale=scale, **fields,
    )
