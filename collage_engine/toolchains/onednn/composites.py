"""Recognises chains of operators that are one oneDNN function: activations written out.

Exporters and TVM's importer write GELU, SiLU and the like as up to ten operators. A composite is
recognised on the dataflow graph by pattern, its scalar constants are checked when the function is
compiled, and it becomes one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.greedy import closed
from collage_engine.partition.patterns import Match, all_matches, anything
from collage_engine.records.graph import (
    NO_OPERATORS,
    OperatorNumber,
    OperatorSet,
)
from collage_engine.toolchains.onednn.steps import OneDnnProgram
from collage_engine.toolchains.runtime.chains import ACTIVATIONS, VALUES

Build = Callable[[OneDnnProgram, Match], int | None]
"""A function that emits a composite; it returns None where constants have other values than
expected."""


_ACTIVATIONS = {
    "gelu_erf": ("gelu_erf", 0.0, 0.0),
    "gelu_tanh": ("gelu_tanh", 0.0, 0.0),
    "hardswish": ("hardswish", 1 / 6, 0.5),
    "silu": ("swish", 1.0, 0.0),
}
"""By chain: oneDNN's function that it is, with its parameters."""


def _as_written(plan: OneDnnProgram, match: Match) -> bool:
    """Return whether the scalar constants that the match bound have the chain's values."""
    if plan.dry:
        return True
    bound = ((plan.scalar(i), VALUES[n]) for n, i in match.bindings.items() if n in VALUES)
    return all(given is not None and np.isclose(given, v, rtol=1e-3) for given, v in bound)


def _activation(name: str) -> Build:
    def build(plan: OneDnnProgram, match: Match) -> int | None:
        if not _as_written(plan, match):
            return None
        return plan.eltwise(plan.tensor(match.bindings["x"]), *_ACTIVATIONS[name])

    return build


def _hardsigmoid(plan: OneDnnProgram, match: Match) -> int | None:
    alpha, beta = (plan.scalar(match.bindings[name]) or 0.0 for name in ("alpha", "beta"))
    return plan.eltwise(plan.tensor(match.bindings["x"]), "hardsigmoid", alpha, beta)


_BUILDS: dict[str, Build] = {
    "hardsigmoid": _hardsigmoid,
    **{name: _activation(name) for name in _ACTIVATIONS},
}


@dataclass(frozen=True)
class Claim:
    """A composite at a place in a graph."""

    build: Build
    match: Match
    nodes: OperatorSet


_known: WeakKeyDictionary[DataflowGraph, tuple[Claim, ...]] = WeakKeyDictionary()
"""The places of composites in graphs whose operators are read by nobody else; they may overlap."""


def within(graph: DataflowGraph, inside: OperatorSet) -> dict[OperatorNumber, Claim]:
    """Return the composites that lie in a set, by root; of overlapping ones the larger."""
    if graph not in _known:
        _known[graph] = tuple(_search(graph))
    chosen: dict[OperatorNumber, Claim] = {}
    taken = NO_OPERATORS
    for claim in _known[graph]:
        if not (claim.nodes & ~inside or claim.nodes & taken):
            chosen[claim.match.root] = claim
            taken |= claim.nodes
    return chosen


def _search(graph: DataflowGraph) -> Iterator[Claim]:
    for name, chain in ACTIVATIONS.items():
        pattern = chain(anything("x"))
        roots = pattern.root_ops or frozenset()
        for root in graph.operators:
            if graph.nodes[root].op not in roots:
                continue
            for match in all_matches(graph, pattern, root):
                if closed(graph, match):
                    yield Claim(_BUILDS[name], match, match.nodes)
                    break
