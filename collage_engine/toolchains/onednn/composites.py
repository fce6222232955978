"""Recognises chains of operators that are one oneDNN function: activations and norms written out.

Exporters and TVM's importer write GELU, SiLU, ELU, layer normalisation and the like as up to ten
operators. A composite is recognised on the dataflow graph by pattern, its scalar constants are
checked when the function is compiled, and it becomes one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import NO_NODES, members, node_set
from collage_engine.partition.greedy import closed
from collage_engine.partition.patterns import Match, Pattern, all_matches, anything
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.toolchains.onednn.linear import normalise_last
from collage_engine.toolchains.onednn.steps import OneDnnProgram
from collage_engine.toolchains.runtime import chains

Build = Callable[[OneDnnProgram, Match], int | None]
"""A function that emits a composite; it returns None where constants have other values than
expected."""


@dataclass(frozen=True)
class Composite:
    """A pattern of operators that is one function of oneDNN, with what emits it."""

    pattern: Pattern
    build: Build


def _is(plan: OneDnnProgram, match: Match, **wanted: float | tuple[float, ...]) -> bool:
    """Returns whether the named scalar constants that the match bound have these values."""
    if plan.dry:
        return True
    for name, values in wanted.items():
        if name not in match.bindings:
            continue
        found = plan.scalar(match.bindings[name])
        choices = values if isinstance(values, tuple) else (values,)
        if found is None or not any(np.isclose(found, v, rtol=1e-3) for v in choices):
            return False
    return True


def _value(plan: OneDnnProgram, match: Match) -> int:
    return plan.tensor(match.bindings["x"])


def _number(plan: OneDnnProgram, match: Match, name: str, otherwise: float) -> float:
    found = plan.scalar(match.bindings[name]) if name in match.bindings else None
    return otherwise if found is None else found


def _gelu_erf(plan: OneDnnProgram, match: Match) -> int | None:
    root = 2.0**0.5
    if _is(plan, match, root=root, inverse_root=1 / root, one=1.0, half=0.5, two=2.0):
        return plan.eltwise(_value(plan, match), "gelu_erf")
    return None


def _gelu_tanh(plan: OneDnnProgram, match: Match) -> int | None:
    wanted = {"square": 2.0, "cube": 3.0, "k": 0.044715, "s": (2 / np.pi) ** 0.5}
    if _is(plan, match, **wanted, one=1.0, half=0.5, two=2.0):
        return plan.eltwise(_value(plan, match), "gelu_tanh")
    return None


def _silu(plan: OneDnnProgram, match: Match) -> int | None:
    return plan.eltwise(_value(plan, match), "swish", 1.0)


def _hardswish(plan: OneDnnProgram, match: Match) -> int | None:
    if _is(plan, match, three=3.0, six=6.0):
        return plan.eltwise(_value(plan, match), "hardswish", 1 / 6, 0.5)
    return None


def _hardsigmoid(plan: OneDnnProgram, match: Match) -> int | None:
    alpha, beta = (_number(plan, match, n, 0.0) for n in ("alpha", "beta"))
    return plan.eltwise(_value(plan, match), "hardsigmoid", alpha, beta)


def _axes(plan: OneDnnProgram, match: Match, name: str, rank: int) -> list[int] | None:
    axes = plan.graph.nodes[match.bindings[name]].attributes.get("axis")
    if axes is None:
        return list(range(rank))
    return sorted(int(a) % rank for a in ([axes] if isinstance(axes, int) else axes))


def _build_norm(plan: OneDnnProgram, match: Match) -> int | None:
    value = _value(plan, match)
    dims = plan.dims[value]
    axes = _axes(plan, match, "mean", len(dims))
    if axes != _axes(plan, match, "variance", len(dims)) or not _is(plan, match, square=2.0):
        return None
    epsilon = _number(plan, match, "epsilon", 1e-5)
    if axes != [len(dims) - 1]:
        return None
    scale, shift = (
        plan.reshape(plan.tensor(match.bindings[n]), (dims[-1],)) if n in match.bindings else None
        for n in ("scale", "shift")
    )
    return normalise_last(plan, value, axes, epsilon, scale, shift)


_X = anything("x")

COMPOSITES: tuple[Composite, ...] = (
    Composite(chains.layer_norm(_X), _build_norm),
    Composite(chains.norm(_X), _build_norm),
    Composite(chains.gelu_erf(_X), _gelu_erf),
    Composite(chains.gelu_tanh(_X), _gelu_tanh),
    Composite(chains.hardswish(_X), _hardswish),
    Composite(chains.silu(_X), _silu),
    Composite(chains.hardsigmoid(_X), _hardsigmoid),
)
"""All composites, larger ones first: the first that fits claims its operators."""


@dataclass(frozen=True)
class Claim:
    """A composite at a place; ``nodes`` holds its calls only."""

    entry: Composite
    match: Match
    nodes: NodeSet


_known: WeakKeyDictionary[DataflowGraph, tuple[Claim, ...]] = WeakKeyDictionary()
"""The places of composites in graphs whose operators are read by nobody else; they may overlap."""


def within(graph: DataflowGraph, inside: NodeSet) -> dict[NodeIndex, Claim]:
    """Returns the composites that lie in a set, by root; of overlapping ones the larger."""
    if graph not in _known:
        _known[graph] = tuple(_search(graph))
    chosen: dict[NodeIndex, Claim] = {}
    taken = NO_NODES
    for claim in _known[graph]:
        if not (claim.nodes & ~inside or claim.nodes & taken):
            chosen[claim.match.root] = claim
            taken |= claim.nodes
    return chosen


def _search(graph: DataflowGraph) -> Iterator[Claim]:
    for entry in COMPOSITES:
        roots = entry.pattern.root_ops or frozenset()
        for root in graph.operators:
            if graph.nodes[root].op not in roots:
                continue
            for match in all_matches(graph, entry.pattern, root):
                calls = node_set(i for i in members(match.nodes) if graph.nodes[i].form == "call")
                if closed(graph, match):
                    yield Claim(entry, match, calls)
                    break
