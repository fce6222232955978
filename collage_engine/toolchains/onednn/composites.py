"""Recognises chains of operators that are one oneDNN function: activations written out.

Exporters and TVM's importer write GELU, SiLU and the like as up to ten operators. A composite is
recognised on the dataflow graph by pattern, its scalar constants are checked when the function is
compiled, and it becomes one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
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

_ACTIVATIONS = {
    "gelu_erf": ("gelu_erf", 0.0, 0.0),
    "gelu_tanh": ("gelu_tanh", 0.0, 0.0),
    "hardswish": ("hardswish", 1 / 6, 0.5),
    "silu": ("swish", 1.0, 0.0),
}
"""By chain: oneDNN's function that it is, with its parameters."""


class Claim(NamedTuple):
    """A composite at a place in a graph."""

    name: str
    match: Match


def emit(plan: OneDnnProgram, claim: Claim) -> int | None:
    """Emit a composite; returns None where constants have other values than expected."""
    bound = claim.match.bindings
    if claim.name == "hardsigmoid":
        alpha, beta = (plan.scalar(bound[name]) or 0.0 for name in ("alpha", "beta"))
        return plan.eltwise(plan.tensor(bound["x"]), "hardsigmoid", alpha, beta)
    for name in () if plan.dry else VALUES.keys() & bound.keys():
        given = plan.scalar(bound[name])
        if given is None or not np.isclose(given, VALUES[name], rtol=1e-3):
            return None
    return plan.eltwise(plan.tensor(bound["x"]), *_ACTIVATIONS[claim.name])


_known: WeakKeyDictionary[DataflowGraph, tuple[Claim, ...]] = WeakKeyDictionary()
"""The places of composites in graphs whose operators are read by nobody else; they may overlap."""


def within(graph: DataflowGraph, inside: OperatorSet) -> dict[OperatorNumber, Claim]:
    """Return the composites that lie in a set, by root; of overlapping ones the larger."""
    if graph not in _known:
        _known[graph] = tuple(_search(graph))
    chosen: dict[OperatorNumber, Claim] = {}
    taken = NO_OPERATORS
    for claim in _known[graph]:
        nodes = claim.match.nodes
        if not (nodes & ~inside or nodes & taken):
            chosen[claim.match.root] = claim
            taken |= nodes
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
                    yield Claim(name, match)
                    break
