"""Ready-made rule trees for toolchains (TVM v0.18 ``gather_partition_specs.cc``, and beyond)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.anchors import HorizontalRule, VerticalRule
from collage_engine.partition.combiners import (
    A_TO_A,
    A_TO_B,
    B_TO_R,
    I_TO_I,
    AllSimple,
    CombineLimits,
    CombinerRule,
    TupleArgument,
    TupleProjection,
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
    PrimitiveRule,
    UnionRule,
)
from collage_engine.partition.sub_graph import SubGraphConfig
from collage_engine.records.graph import OpKind
from collage_engine.records.numbering import NodeIndex

FusionStyle = Literal["NoFusion", "TVMFusion", "ArbitraryFusion"]

PatternEntry = tuple[str, Pattern] | tuple[str, Pattern, Predicate | None]
"""(composite name, pattern, further check of a match)."""

DEFAULT_LIMITS = CombineLimits(max_exits=3, per_node=48, pairs=1000)
"""Limits of the unions that a tree proposes: exits, unions that begin at one node, and pairs tried
for each single operator. Chosen: they bound wide graphs (``test_partition_combine`` has a star of
readers); a BERT, a ShuffleNet and a MobileNet have as many candidates (313, 500, 298) without."""

_SIMPLE = (A_TO_B, B_TO_R, I_TO_I)
"""The pairs of kinds that TVM's FuseOps fuses (RFC 0062)."""


def fusion_rules(
    name: str, max_depth: int = 8, limits: CombineLimits = DEFAULT_LIMITS, max_exits: int = 1
) -> PartitionRule:
    """Return rules for everything that TVM could fuse into one kernel.

    Calls that are no opaque operators are joined as FuseOps joins them.

    Args:
        name: The name of the rule tree.
        max_depth: Nodes on the longest path through a candidate at most; 0: no bound.
        limits: How many unions are tried.
        max_exits: Nodes whose value may leave a candidate.
    """
    return OnlyValidRule(
        name,
        CombineRule(
            "combine",
            OpCallByKindRule("op"),
            (AllSimple(_SIMPLE), TupleArgument(), TupleProjection()),
            max_depth,
            limits,
        ),
        SubGraphConfig(max_exits=max_exits, max_depth=max_depth),
    )


def byoc_rules(
    patterns: Sequence[PatternEntry],
    style: FusionStyle = "NoFusion",
    max_depth: int = 8,
    *,
    name: str = "byoc",
    supports: Callable[[DataflowGraph, NodeIndex], str | None] | None = None,
    limits: CombineLimits = DEFAULT_LIMITS,
    max_exits: int = 1,
) -> PartitionRule:
    """Return rules for the composites of a pattern table, joined in one of upstream's styles.

    Args:
        patterns: The composites' names and patterns.
        style: Whether composites are joined with nothing, as FuseOps joins, or with any neighbour.
        max_depth: Nodes on the longest path through a candidate at most; 0: no bound.
        name: The name of the rule tree.
        supports: Says why a call cannot run on its own; None for one that can. Without it calls
            that are in no pattern are no candidates.
        limits: How many unions are tried.
        max_exits: Nodes whose value may leave a candidate.
    """
    rules: list[PartitionRule] = [_composite(entry) for entry in patterns]
    if supports is not None:
        rules.append(OpPredicateRule("op", supports))
    tree: PartitionRule = UnionRule("", tuple(rules))
    if style != "NoFusion":
        simple = _SIMPLE if style == "TVMFusion" else (A_TO_A,)
        combiners: tuple[CombinerRule, ...] = (AllSimple(simple), TupleProjection())
        tree = CombineRule("combine", tree, combiners, max_depth, limits)
    config = SubGraphConfig(max_exits=max_exits, max_depth=max_depth)
    return PrimitiveRule(name, OnlyValidRule("", tree, config))


def composite_rules(name: str, patterns: Sequence[PatternEntry]) -> PartitionRule:
    """Return rules for the composites of a pattern table as they are, joined with nothing."""
    rules = tuple(_composite(entry) for entry in patterns)
    return OnlyValidRule(name, UnionRule("", rules), SubGraphConfig(max_exits=1))


def _composite(entry: PatternEntry) -> PartitionRule:
    predicate = entry[2] if len(entry) > 2 else None
    return CompositeRule(entry[0], PatternRule(entry[0], entry[1], predicate))


LIBRARY_CONFIG = SubGraphConfig(max_exits=1, max_depth=8)
"""What a group that calls a library must satisfy: the same as any group of TVM's."""


def library_rules(
    name: str, patterns: Sequence[PatternEntry], limits: CombineLimits = DEFAULT_LIMITS
) -> PartitionRule:
    """Return rules for TVM's groups with library calls inside (RFC 0062, "external libraries").

    They are ``OnlyValid(Combine TVM(Union(OpCallByKind, Composite(pattern))))``. Anchors on their
    own are left to the tree without a library, which finds the same groups.

    Args:
        name: The name of the rule tree.
        patterns: The library calls' names and patterns.
        limits: How many unions are tried.
    """
    rules = (OpCallByKindRule("op", "reduction"), *(_composite(entry) for entry in patterns))
    combiners = (AllSimple(_SIMPLE), TupleArgument(), TupleProjection())
    depth = LIBRARY_CONFIG.max_depth
    combined = CombineRule("combine", UnionRule("", rules), combiners, depth, limits)
    return OnlyValidRule(name, combined, LIBRARY_CONFIG)


def anchor_rules(
    vertical: bool = True,
    horizontal: bool = True,
    *,
    epilogue: OpKind = "broadcast",
    max_siblings: int = 8,
) -> PartitionRule:
    """Return rules for anchors with their epilogues.

    Args:
        vertical: Whether each anchor with growing parts of its epilogue is a candidate.
        horizontal: Whether anchors of one kind on one input are candidates together.
        epilogue: The greatest kind that a vertical epilogue may hold.
        max_siblings: Anchors on one input at most.
    """
    rules: list[PartitionRule] = []
    if vertical:
        rules.append(VerticalRule("vertical", epilogue))
    if horizontal:
        rules.append(HorizontalRule("horizontal", max_siblings=max_siblings))
    return UnionRule("anchor", tuple(rules))


def union_rules(name: str, *rules: PartitionRule) -> PartitionRule:
    """Join several trees to one."""
    return UnionRule(name, rules)
