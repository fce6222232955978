"""Matches patterns against the dataflow graph.

A pattern is matched at a root, against the flow of data: an operator pattern looks at the values
that the operator reads. Alternatives and commutative operators are tried in turn (backtracking).

    conv = op("nn.conv2d", anything(), constant("weight"))
    biased = conv.optional(lambda x: op("add", x, constant("bias")))
    pattern = biased.optional(lambda x: op("nn.relu", x))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import (
    Node,
    OperatorNumber,
    OperatorSet,
    Value,
    ValueIndex,
    operator_set,
)

Where = Callable[[DataflowGraph, Value], bool]
"""A constraint on a value: a function that tells whether it is satisfied."""

COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum"})

Bound = dict[int, tuple["Pattern", ValueIndex]]
"""The parts of a pattern that are bound: by a part's id, the part and the value that it matched."""


@dataclass(frozen=True)
class Match:
    """A match says where a pattern matched."""

    root: OperatorNumber
    nodes: OperatorSet
    """Matched operators, without what only wildcards matched."""
    bindings: dict[str, ValueIndex]
    """The value of every named part; an operator's first result."""
    kind: str = ""
    """The name of the pattern in the table by which it was looked for."""

    def get(self, name: str) -> ValueIndex | None:
        """Return the value of a named part; None where the match has none."""
        return self.bindings.get(name)

    def __getitem__(self, name: str) -> ValueIndex:
        return self.bindings[name]

    def __contains__(self, name: str) -> bool:
        return name in self.bindings


@dataclass(frozen=True, eq=False)
class Pattern(ABC):
    """A pattern that is matched against a value of the graph and what feeds it.

    The same object used twice must match the same value.
    """

    inside: ClassVar[bool] = True
    """Whether what this part matches belongs to the sub-graph."""
    name: str = field(default="", kw_only=True)
    where: Where | None = field(default=None, kw_only=True)

    def __or__(self, other: Pattern) -> Pattern:
        return Either((self, other))

    def optional(self, wrap: Callable[[Pattern], Pattern]) -> Pattern:
        """Return a pattern of ``wrap`` around this one, or of this one alone."""
        return Either((wrap(self), self))

    def attempt(self, graph: DataflowGraph, index: ValueIndex, bound: Bound) -> Iterator[Bound]:
        """Yield every way in which this part matches a value, given what is bound already."""
        before = bound.get(id(self))
        if before is not None:
            if before[1] == index:
                yield bound
            return
        for matched in self.expand(graph, index, bound):
            yield {**matched, id(self): (self, index)}

    def possible(self, graph: DataflowGraph, index: ValueIndex) -> bool:
        """Tells whether the operator alone leaves a match possible, before any part is tried."""
        if self.root_ops is None:
            return True
        return index < len(graph) and graph.nodes[index].op in self.root_ops

    def satisfied(self, graph: DataflowGraph, index: ValueIndex) -> bool:
        """Tell whether the value passes this part's own condition."""
        return self.where is None or self.where(graph, graph.values[index])

    @abstractmethod
    def expand(self, graph: DataflowGraph, index: ValueIndex, bound: Bound) -> Iterator[Bound]:
        """Return every way in which this part matches a value."""

    @cached_property
    def root_ops(self) -> frozenset[str] | None:
        """Return operators a root can have; None when it need not be an operator."""
        return None


@dataclass(frozen=True, eq=False)
class Anything(Pattern):
    """A wildcard for any value, whose operator stays outside unless another part matches it too."""

    inside = False

    def expand(self, graph: DataflowGraph, index: ValueIndex, bound: Bound) -> Iterator[Bound]:
        """Yield one match where the condition holds."""
        if self.satisfied(graph, index):
            yield bound


@dataclass(frozen=True, eq=False)
class Constant(Pattern):
    """A pattern of a constant; ``scalar`` True wants a single element, False more than one."""

    inside = False
    scalar: bool | None = None

    def expand(self, graph: DataflowGraph, index: ValueIndex, bound: Bound) -> Iterator[Bound]:
        """Yield one match where the value is a constant of the wanted size."""
        value = graph.values[index]
        fits = value.constant and (self.scalar is None or self.scalar == (value.type.elements == 1))
        if fits and self.satisfied(graph, index):
            yield bound


@dataclass(frozen=True, eq=False)
class Op(Pattern):
    """A pattern of the first result of a call of one of ``ops``.

    ``attributes`` maps a name to the wanted value or to a predicate over the value. With
    ``commutative`` (default for add, multiply, maximum, minimum) both orders of two arguments
    are tried.
    """

    ops: tuple[str, ...] = ()
    args: tuple[Pattern, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    dtypes: tuple[str, ...] = ()
    commutative: bool = False

    def expand(self, graph: DataflowGraph, index: ValueIndex, bound: Bound) -> Iterator[Bound]:
        """Yield every way in which the call's arguments match, in either order if commutative."""
        if index >= len(graph):
            return
        node = graph.nodes[index]
        if node.op not in self.ops or not self._has_attributes(node):
            return
        if not self.satisfied(graph, index):
            return
        if len(node.inputs) != len(self.args):
            return
        orders: list[Sequence[ValueIndex]] = [node.inputs]
        if self.commutative and len(node.inputs) == 2 and node.inputs[0] != node.inputs[1]:
            orders.append(node.inputs[::-1])
        for order in orders:
            if all(a.possible(graph, i) for a, i in zip(self.args, order, strict=True)):
                yield from _match_all(graph, self.args, order, bound)

    def _has_attributes(self, node: Node) -> bool:
        if self.dtypes and node.type.dtype not in self.dtypes:
            return False
        for name, expected in self.attributes:
            value = node.attributes.get(name)
            if not (expected(value) if callable(expected) else _plain(value) == _plain(expected)):
                return False
        return True

    @cached_property
    def root_ops(self) -> frozenset[str] | None:
        """Return the operators it may be a call of."""
        return frozenset(self.ops)


@dataclass(frozen=True, eq=False)
class Either(Pattern):
    """A pattern of several choices, which are tried in order."""

    inside = False  # What a choice matches counts by the choice.
    choices: tuple[Pattern, ...] = ()

    def expand(self, graph: DataflowGraph, index: ValueIndex, bound: Bound) -> Iterator[Bound]:
        """Yield every way in which one of the choices matches, in their order."""
        for choice in self.choices:
            if choice.possible(graph, index):
                yield from choice.attempt(graph, index, bound)

    @cached_property
    def root_ops(self) -> frozenset[str] | None:
        """Return the operators of all choices; None if one of them needs no operator."""
        ops: frozenset[str] = frozenset()
        for choice in self.choices:
            if choice.root_ops is None:
                return None
            ops |= choice.root_ops
        return ops


def _match_all(
    graph: DataflowGraph, patterns: Sequence[Pattern], indices: Sequence[ValueIndex], bound: Bound
) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    for matched in patterns[0].attempt(graph, indices[0], bound):
        yield from _match_all(graph, patterns[1:], indices[1:], matched)


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


# What patterns are written with


def anything(name: str = "", where: Where | None = None) -> Pattern:
    """Return a pattern that any value matches."""
    return Anything(name=name, where=where)


def constant(name: str = "", scalar: bool | None = None, where: Where | None = None) -> Pattern:
    """Return a pattern that constants match: any, scalars only, or tensors only."""
    return Constant(scalar, name=name, where=where)


def op(
    ops: str | Sequence[str],
    *args: Pattern,
    name: str = "",
    where: Where | None = None,
    dtypes: Sequence[str] = (),
    commutative: bool | None = None,
    **attributes: Any,
) -> Pattern:
    """Return a pattern of a call of one of some operators, with these operands and no more.

    Args:
        ops: The operator, or several of which the call may be any.
        args: Patterns of its inputs.
        name: The name under which a match binds the call.
        where: A further condition on the call.
        dtypes: Element types that the call's value may have; empty: any.
        commutative: Whether inputs may be in either order; by default they may for the operators in
            ``COMMUTATIVE``.
        attributes: Attributes that the call must have: a value, or a function that tells whether a
            value will do.
    """
    names = (ops,) if isinstance(ops, str) else tuple(ops)
    if commutative is None:
        commutative = all(n in COMMUTATIVE for n in names)
    return Op(
        names,
        args,
        tuple(sorted(attributes.items())),
        tuple(dtypes),
        commutative,
        name=name,
        where=where,
    )


# Matching


def all_matches(graph: DataflowGraph, pattern: Pattern, root: OperatorNumber) -> Iterator[Match]:
    """Yield every match at a root that covers a distinct set of operators, preferred ones first."""
    seen: set[OperatorSet] = set()
    for bound in pattern.attempt(graph, root, {}):
        match = _to_match(graph, root, bound)
        if match.nodes and match.nodes not in seen:
            seen.add(match.nodes)
            yield match


def _to_match(graph: DataflowGraph, root: OperatorNumber, bound: Bound) -> Match:
    nodes = operator_set(graph.nodes[i].index for part, i in bound.values() if part.inside)
    names = {part.name: index for part, index in bound.values() if part.name}
    return Match(root, nodes, names)


def closed_matches(graph: DataflowGraph, table: Iterable[tuple[str, Pattern]]) -> Iterator[Match]:
    """Yield the places of patterns whose inner values are read by nobody else.

    They may overlap. They come in the order of the table, from the outputs on, so that an anchor
    with all that follows comes before the bare one.
    """
    for kind, pattern in table:
        for root in reversed(graph.operators):
            if not pattern.possible(graph, root):
                continue
            for match in all_matches(graph, pattern, root):
                if graph.is_closed(match.nodes, root):
                    yield replace(match, kind=kind)
                    break


def disjoint(
    matches: Iterable[Match], inside: OperatorSet, leaving: OperatorSet = 0
) -> dict[OperatorNumber, Match]:
    """Return the matches that lie in a set, by root; of overlapping ones the first.

    Args:
        matches: The matches.
        inside: The set of operators.
        leaving: Operators whose value is read outside the set; only a root may be among them.
    """
    chosen: dict[OperatorNumber, Match] = {}
    taken = ~inside
    for match in matches:
        if not match.nodes & (taken | leaving & ~(1 << match.root)):
            chosen[match.root] = match
            taken |= match.nodes
    return chosen
