"""Ready-made rule trees for toolchains (TVM v0.18 ``gather_partition_specs.cc``, and beyond)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.combiners import (
    A_TO_B,
    B_TO_R,
    I_TO_I,
    AllSimple,
    CombineLimits,
    ListArgument,
)
from collage_engine.partition.patterns import Pattern
from collage_engine.partition.rules import (
    CombineRule,
    CompositeRule,
    OnlyValidRule,
    OpCallByKindRule,
    OpPredicateRule,
    PartitionRule,
    PatternRule,
    Predicate,
    UnionRule,
)
from collage_engine.partition.sub_graph import SubGraphConfig
from collage_engine.records.graph import OperatorNumber

FusionStyle = Literal["NoFusion", "TVMFusion"]

PatternEntry = tuple[str, Pattern] | tuple[str, Pattern, Predicate | None]
"""(composite name, pattern, further check of a match)."""

LIMITS = CombineLimits(max_exits=3, per_node=48, steps=800)
"""Limits of the unions that a tree proposes: exits, unions that begin at one operator, and steps of
work for each operator. Chosen: they bound graphs of any structure (``test_partition_combine``
counts the calls for ten of 500 operators), and no model of ``tests/zoo`` spends more than 510
steps."""

MOST_DEPTH = 8
"""Operators on the longest path through a candidate, at most, where a toolchain sets no other
bound; chosen."""

GROUP_CONFIG = SubGraphConfig(max_exits=1, max_depth=MOST_DEPTH)
"""What a group of TVM's must satisfy."""

_SIMPLE = (A_TO_B, B_TO_R, I_TO_I)
"""The pairs of kinds that TVM's FuseOps fuses (RFC 0062)."""


def fusion_rules(name: str) -> PartitionRule:
    """Return rules for everything that TVM could fuse into one kernel.

    Calls that are no opaque operators are joined as FuseOps joins them.

    Args:
        name: The name of the rule tree.
    """
    combiners = (AllSimple(_SIMPLE), ListArgument())
    combined = CombineRule("combine", OpCallByKindRule("op"), combiners, MOST_DEPTH, LIMITS)
    return OnlyValidRule(name, combined, GROUP_CONFIG)


def byoc_rules(
    patterns: Sequence[PatternEntry],
    style: FusionStyle = "NoFusion",
    *,
    name: str = "byoc",
    supports: Callable[[DataflowGraph, OperatorNumber], str | None] | None = None,
) -> PartitionRule:
    """Return rules for the composites of a pattern table, joined or not.

    Args:
        patterns: The composites' names and patterns.
        style: Whether composites are joined with nothing, or as FuseOps joins.
        name: The name of the rule tree.
        supports: Says why a call cannot run on its own; None for one that can. Without it calls
            that are in no pattern are no candidates.
    """
    rules: list[PartitionRule] = [_composite(entry) for entry in patterns]
    if supports is not None:
        rules.append(OpPredicateRule("op", supports))
    tree: PartitionRule = UnionRule("", tuple(rules))
    if style == "TVMFusion":
        tree = CombineRule("combine", tree, (AllSimple(_SIMPLE),), MOST_DEPTH, LIMITS)
    return OnlyValidRule(name, tree, GROUP_CONFIG)


def composite_rules(name: str, patterns: Sequence[PatternEntry]) -> PartitionRule:
    """Return rules for the composites of a pattern table as they are, joined with nothing."""
    rules = tuple(_composite(entry) for entry in patterns)
    return OnlyValidRule(name, UnionRule("", rules), SubGraphConfig(max_exits=1))


def _composite(entry: PatternEntry) -> PartitionRule:
    predicate = entry[2] if len(entry) > 2 else None
    return CompositeRule(entry[0], PatternRule(entry[0], entry[1], predicate))


def union_rules(name: str, *rules: PartitionRule) -> PartitionRule:
    """Join several trees to one."""
    return UnionRule(name, rules)
