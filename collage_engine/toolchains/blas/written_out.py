"""Activations that exporters write as chains of operators: one function each, where their
constants are the expected ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import IndexSet, members
from collage_engine.partition.patterns import Match, Pattern, all_matches, anything
from collage_engine.toolchains.blas.plan import Post
from collage_engine.toolchains.native import chains

Scalar = Callable[[int], float | None]

_ROOT = 2.0**0.5
_X = anything("x")


@dataclass(frozen=True)
class Chain:
    """A function's name in the runtime, its chain, and the values of the chain's constants."""

    fn: str
    pattern: Pattern
    constants: tuple[tuple[str, float], ...] = ()
    parameters: tuple[str, ...] = ()
    """Constants that the function takes as its a and b."""


_HALF = (("one", 1.0), ("half", 0.5), ("two", 2.0))
CHAINS = (
    Chain("gelu_erf", chains.gelu_erf(_X), (("root", _ROOT), ("inverse_root", 1 / _ROOT), *_HALF)),
    Chain(
        "gelu_tanh",
        chains.gelu_tanh(_X),
        (("square", 2.0), ("cube", 3.0), ("k", 0.044715), ("s", (2 / np.pi) ** 0.5), *_HALF),
    ),
    Chain("hardswish", chains.hardswish(_X), (("three", 3.0), ("six", 6.0))),
    Chain("silu", chains.silu(_X)),
    Chain("hardsigmoid", chains.hardsigmoid(_X), (), ("alpha", "beta")),
)


@dataclass(frozen=True)
class Found:
    """A chain at a place; ``nodes`` holds its calls only."""

    chain: Chain
    match: Match
    nodes: IndexSet

    @property
    def source(self) -> int:
        return self.match.bindings["x"]

    def post(self, scalar: Scalar) -> Post | None:
        """The function; None when a constant is another than expected."""
        bound = self.match.bindings
        for name, wanted in self.chain.constants:
            if name in bound:
                value = scalar(bound[name])
                if value is None or not np.isclose(value, wanted, rtol=1e-3):
                    return None
        given = [scalar(bound[name]) for name in self.chain.parameters]
        if None in given:
            return None
        a, b = (*(v for v in given if v is not None), 0.0, 0.0)[:2]
        return Post(self.chain.fn, a, b)


_known: WeakKeyDictionary[DataflowGraph, tuple[Found, ...]] = WeakKeyDictionary()


def _find(graph: DataflowGraph) -> tuple[Found, ...]:
    known = _known.get(graph)
    if known is None:
        found = []
        for chain in CHAINS:
            roots = chain.pattern.root_ops or frozenset()
            for root in graph.operators:
                if graph.nodes[root].op not in roots:
                    continue
                for match in all_matches(graph, chain.pattern, root):
                    calls = sum(
                        1 << i for i in members(match.nodes) if graph.nodes[i].form == "call"
                    )
                    if _closed(graph, calls, root):
                        found.append(Found(chain, match, calls))
                        break
        known = _known.setdefault(graph, tuple(found))
    return known


def _closed(graph: DataflowGraph, calls: IndexSet, root: int) -> bool:
    """Whether only the root's value is read outside."""
    return all(
        index == root
        or not (
            graph.output_set >> index & 1 or any(not calls >> u & 1 for u in graph.users[index])
        )
        for index in members(calls)
    )


def within(graph: DataflowGraph, inside: IndexSet) -> dict[int, Found]:
    """Chains that lie in a set, by root; of overlapping ones the first in the table wins."""
    chosen: dict[int, Found] = {}
    taken = 0
    for found in _find(graph):
        if not (found.nodes & ~inside or found.nodes & taken):
            chosen[found.match.root] = found
            taken |= found.nodes
    return chosen
