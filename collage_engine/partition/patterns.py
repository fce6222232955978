"""Matches patterns against the dataflow graph, and reports why a pattern failed.

A pattern is matched at a root, against the flow of data: an operator pattern looks at its
inputs. Alternatives and commutative operators are tried in turn (backtracking); of all the
attempts that fail, the one that got furthest is reported, with the part of the pattern, the
node it was tried on and what was found there (the idea of the onnxscript rewriter).

    conv = op("nn.conv2d", anything(), constant("weight"))
    biased = conv.optional(lambda x: op("add", x, constant("bias")))
    pattern = biased.optional(lambda x: op("nn.relu", x))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set
from collage_engine.partition.matching import Failure, Match, Trace, describe
from collage_engine.partition.sub_graph import inlinable
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type

Where = Callable[[DataflowGraph, Node], str | None]
"""A constraint on a node: a function that returns None when satisfied, else the reason in a few
words."""

COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum"})

Bound = dict[int, tuple["Pattern", NodeIndex]]
"""The parts of a pattern that are bound: by a part's id, the part and the node that it matched."""


@dataclass(frozen=True, eq=False)
class Pattern(ABC):
    """A pattern that is matched against a node of the graph and what feeds it.

    The same object used twice must match the same node.
    """

    name: str = field(default="", kw_only=True)
    where: Where | None = field(default=None, kw_only=True)

    def __or__(self, other: Pattern) -> Pattern:
        return Either((self, other))

    def optional(self, wrap: Callable[[Pattern], Pattern]) -> Pattern:
        """Returns a pattern of ``wrap`` around this one, or of this one alone."""
        return Either((wrap(self), self))

    def attempt(self, index: NodeIndex, bound: Bound, trace: Trace) -> Iterator[Bound]:
        """Yields every way in which this part matches at a node, given what is bound already."""
        before = bound.get(id(self))
        if before is not None:
            if before[1] == index:
                yield bound
            else:
                other = describe(trace.graph, before[1])
                trace.fail(self, index, f"another node than {other}", len(bound))
            return
        for matched in self.expand(index, bound, trace):
            yield {**matched, id(self): (self, index)}

    def possible(self, index: NodeIndex, bound: Bound, trace: Trace) -> bool:
        """Tells whether the operator alone leaves a match possible, before any part is tried."""
        ops = self.root_ops
        if ops is None or trace.graph.nodes[index].op in ops:
            return True
        trace.fail(self, index, None, len(bound))
        return False

    def satisfied(self, index: NodeIndex, bound: Bound, trace: Trace) -> bool:
        """Tell whether the node passes this part's own condition; a failure is noted."""
        if self.where is None:
            return True
        reason = self.where(trace.graph, trace.graph.nodes[index])
        if reason is None:
            return True
        found = f"{describe(trace.graph, index)}: {reason}"
        trace.fail(self, index, found, len(bound))
        return False

    @abstractmethod
    def expand(self, index: NodeIndex, bound: Bound, trace: Trace) -> Iterator[Bound]:
        """Return every way in which this part matches at a node."""

    @cached_property
    def root_ops(self) -> frozenset[str] | None:
        """Return operators a root can have; None when it need not be an operator."""
        return None

    @property
    def inside(self) -> bool:
        """Tell whether what this part matches belongs to the sub-graph."""
        return True


@dataclass(frozen=True, eq=False)
class Anything(Pattern):
    """A wildcard for any node, which stays outside unless another part matches it too."""

    def expand(self, index: NodeIndex, bound: Bound, trace: Trace) -> Iterator[Bound]:
        """Yield one match where the condition holds."""
        if self.satisfied(index, bound, trace):
            yield bound

    @property
    def inside(self) -> bool:
        """Returns False: what a wildcard matches stays outside."""
        return False

    def __str__(self) -> str:
        return self.name or "anything"


@dataclass(frozen=True, eq=False)
class Constant(Pattern):
    """A pattern of a constant; ``scalar`` True wants a single element, False more than one."""

    scalar: bool | None = None

    def expand(self, index: NodeIndex, bound: Bound, trace: Trace) -> Iterator[Bound]:
        """Yield one match where the node is a constant of the wanted size."""
        node = trace.graph.nodes[index]
        wanted = node.form == "constant" and (
            self.scalar is None or self.scalar == (node.type.elements == 1)
        )
        if not wanted:
            trace.fail(self, index, None, len(bound))
        elif self.satisfied(index, bound, trace):
            yield bound

    def __str__(self) -> str:
        kind = {None: "constant", True: "scalar constant", False: "tensor constant"}[self.scalar]
        return f"{kind} '{self.name}'" if self.name else kind


@dataclass(frozen=True, eq=False)
class Op(Pattern):
    """A pattern of a call of one of ``ops``; ``args`` None leaves its inputs alone.

    ``attributes`` maps a name to the wanted value or to a predicate over the value. With
    ``commutative`` (default for add, multiply, maximum, minimum) both orders of two arguments
    are tried.
    """

    ops: tuple[str, ...] = ()
    args: tuple[Pattern, ...] | None = None
    attributes: tuple[tuple[str, Any], ...] = ()
    dtypes: tuple[str, ...] = ()
    commutative: bool = False

    def expand(self, index: NodeIndex, bound: Bound, trace: Trace) -> Iterator[Bound]:
        """Yield every way in which the call's arguments match, in either order if commutative."""
        node = trace.graph.nodes[index]
        if node.form != "call" or node.op not in self.ops:
            trace.fail(self, index, None, len(bound))
            return
        wrong = self._wrong(node)
        if wrong:
            trace.fail(self, index, f"{describe(trace.graph, index)} {wrong}", len(bound) + 1)
            return
        if not self.satisfied(index, bound, trace):
            return
        if self.args is None:
            yield bound
            return
        if len(node.inputs) != len(self.args):
            found = f"{describe(trace.graph, index)} with {len(node.inputs)} inputs"
            trace.fail(self, index, found, len(bound) + 1)
            return
        orders: list[Sequence[NodeIndex]] = [node.inputs]
        if self.commutative and len(node.inputs) == 2 and node.inputs[0] != node.inputs[1]:
            orders.append(node.inputs[::-1])
        # One more than the parts bound: the operator itself has matched when its inputs fail.
        started = {**bound, -id(self): (self, index)}
        for order in orders:
            if all(a.possible(i, started, trace) for a, i in zip(self.args, order, strict=True)):
                yield from _match_all(self.args, order, started, trace)

    def _wrong(self, node: Node) -> str | None:
        if self.dtypes and node.type.dtype not in self.dtypes:
            return f"is {node.type.dtype}, not {' or '.join(self.dtypes)}"
        for name, wanted in self.attributes:
            value = node.attributes.get(name)
            if callable(wanted):
                if not wanted(value):
                    return f"has {name}={value}"
            elif _plain(value) != _plain(wanted):
                return f"has {name}={value}, not {wanted}"
        return None

    @cached_property
    def root_ops(self) -> frozenset[str] | None:
        """Return the operators it may be a call of."""
        return frozenset(self.ops)

    def __str__(self) -> str:
        text = " or ".join(dict.fromkeys(map(onnx_type, self.ops)))
        if self.attributes:
            parts = (n if callable(v) else f"{n}={v}" for n, v in self.attributes)
            text += "[" + ",".join(parts) + "]"
        return f"{text} '{self.name}'" if self.name else text


@dataclass(frozen=True, eq=False)
class TupleOf(Pattern):
    """A pattern of a tuple with exactly these fields; ``fields`` None: any tuple."""

    fields: tuple[Pattern, ...] | None = None

    def expand(self, index: NodeIndex, bound: Bound, trace: Trace) -> Iterator[Bound]:
        """Yield every way in which the fields of the tuple match."""
        node = trace.graph.nodes[index]
        if node.form != "tuple":
            trace.fail(self, index, None, len(bound))
        elif self.fields is not None and len(self.fields) != len(node.inputs):
            trace.fail(self, index, f"a tuple of {len(node.inputs)}", len(bound))
        elif not self.satisfied(index, bound, trace):
            return
        elif self.fields is None:
            yield bound
        else:
            yield from _match_all(self.fields, node.inputs, bound, trace)

    def __str__(self) -> str:
        return "a tuple" if self.fields is None else f"a tuple of {len(self.fields)}"


@dataclass(frozen=True, eq=False)
class Either(Pattern):
    """A pattern of several choices, which are tried in order."""

    choices: tuple[Pattern, ...] = ()

    def expand(self, index: NodeIndex, bound: Bound, trace: Trace) -> Iterator[Bound]:
        """Yield every way in which one of the choices matches, in their order."""
        for choice in self.choices:
            if choice.possible(index, bound, trace):
                yield from choice.attempt(index, bound, trace)

    @cached_property
    def root_ops(self) -> frozenset[str] | None:
        """Return the operators of all choices; None if one of them needs no operator."""
        ops: frozenset[str] = frozenset()
        for choice in self.choices:
            if choice.root_ops is None:
                return None
            ops |= choice.root_ops
        return ops

    @property
    def inside(self) -> bool:
        """Returns False: what is matched counts by the choice that matched it."""
        return False  # What a choice matches counts by the choice.

    def __str__(self) -> str:
        return " or ".join(map(str, self.choices))


def _match_all(
    patterns: Sequence[Pattern], indices: Sequence[NodeIndex], bound: Bound, trace: Trace
) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    for matched in patterns[0].attempt(indices[0], bound, trace):
        yield from _match_all(patterns[1:], indices[1:], matched, trace)


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


# What patterns are written with


def anything(name: str = "", where: Where | None = None) -> Pattern:
    """Return a pattern that any node matches."""
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
    any_args: bool = False,
    **attributes: Any,
) -> Pattern:
    """Returns a pattern of a call of one of some operators.

    Args:
        ops: The operator, or several of which the call may be any.
        args: Patterns of its inputs.
        name: The name under which a match binds the call.
        where: A further condition on the call.
        dtypes: Element types that the call's value may have; empty: any.
        commutative: Whether inputs may be in either order; by default they may for the operators in
            ``COMMUTATIVE``.
        any_args: Whether the inputs do not matter.
        attributes: Attributes that the call must have: a value, or a function that tells whether a
            value will do.
    """
    names = (ops,) if isinstance(ops, str) else tuple(ops)
    if commutative is None:
        commutative = all(n in COMMUTATIVE for n in names)
    return Op(
        names,
        None if any_args else args,
        tuple(sorted(attributes.items())),
        tuple(dtypes),
        commutative,
        name=name,
        where=where,
    )


# Matching


def all_matches(graph: DataflowGraph, pattern: Pattern, root: NodeIndex) -> Iterator[Match]:
    """Yield every match at a root that covers a distinct set of nodes, the preferred one first."""
    seen: set[NodeSet] = set()
    trace = Trace(graph, wanted=False)
    for bound in pattern.attempt(root, {}, trace):
        match = _to_match(graph, root, bound)
        if match.nodes and match.nodes not in seen:
            seen.add(match.nodes)
            yield match


def match(graph: DataflowGraph, pattern: Pattern, root: NodeIndex) -> Match | Failure:
    """Return the first match at a root, or why there is none."""
    trace = Trace(graph)
    for bound in pattern.attempt(root, {}, trace):
        return _to_match(graph, root, bound)
    if trace.best is None:
        return Failure(root, str(pattern), describe(graph, root), 0)
    return trace.best


def _to_match(graph: DataflowGraph, root: NodeIndex, bound: Bound) -> Match:
    nodes = node_set(
        index for part, index in bound.values() if part.inside and not inlinable(graph.nodes[index])
    )
    names = {part.name: index for part, index in bound.values() if part.name}
    return Match(root, nodes, names)
