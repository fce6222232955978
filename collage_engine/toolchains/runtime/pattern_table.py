"""Lists the composites that both CPU libraries run as one call: an anchor and what follows it.

What a toolchain says of a match and of a sub-graph is derived from what it says of one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Match, Pattern, anything, constant, op
from collage_engine.partition.rule_trees import FusionStyle, PatternEntry, byoc_rules
from collage_engine.partition.rules import PartitionRule
from collage_engine.records.graph import NodeIndex, NodeSet
from collage_engine.toolchains.runtime import chains

CONVOLUTIONS = tuple(f"nn.conv{d}d" for d in (1, 2, 3))


def _anchor(ops: tuple[str, ...], *, constant_weights: bool) -> Pattern:
    weights = constant("weights") if constant_weights else anything("weights")
    return op(ops, anything("data"), weights, commutative=False)


def _biased(anchor: Pattern) -> Pattern:
    return anchor.optional(lambda x: op("add", x, constant("bias")))


def _added(anchor: Pattern) -> Pattern:
    return anchor.optional(lambda x: op("add", x, anything("residual")))


def anchor_patterns(prefix: str) -> list[tuple[str, Pattern]]:
    """Returns patterns of anchors with bias, residual sum and activation.

    Each matches as much as it can.

    Args:
        prefix: What the patterns' names begin with.
    """
    tables = (
        ("conv", CONVOLUTIONS, True),
        ("dense", ("matmul",), True),
        ("matmul", ("matmul",), False),
    )
    found = []
    for name, ops, weights in tables:
        pattern = _added(_biased(_anchor(ops, constant_weights=weights)))
        found.append((f"{prefix}.{name}", pattern.optional(chains.activation)))
    return found


Reason = Callable[[DataflowGraph, NodeIndex], "str | None"]
"""A function that says why a toolchain cannot take the call at an index; None when it can."""


def against_nodes(reason: Reason, graph: DataflowGraph, nodes: NodeSet) -> str | None:
    """Return the reason against the first call of a set that cannot be taken."""
    for index in graph.operators:
        if nodes >> index & 1:
            found = reason(graph, index)
            if found is not None:
                return found
    return None


def against_match(reason: Reason) -> Callable[[DataflowGraph, Match], str | None]:
    """Return the predicate of a pattern table's entry: every matched call can be taken."""
    return lambda graph, match: against_nodes(reason, graph, match.nodes)


def fusing_rules(
    name: str, reason: Reason, further: Sequence[PatternEntry] = (), *, joins: bool = False
) -> PartitionRule:
    """Returns the rules of a library that fuses what follows an operator, written out or not.

    Args:
        name: The toolchain's name.
        reason: Says why the library cannot take a call.
        further: More composites, which come first.
        joins: Whether composites are joined as TVM's fusion would join them.
    """
    takes = against_match(reason)
    written_out = [
        (f"{name}.{key}", make(anything("x"))) for key, make in chains.ACTIVATIONS.items()
    ]
    patterns = (*anchor_patterns(name), *written_out)
    table = [*further, *((label, pattern, takes) for label, pattern in patterns)]
    style: FusionStyle = "TVMFusion" if joins else "NoFusion"
    return byoc_rules(table, style, name=name, supports=reason)
