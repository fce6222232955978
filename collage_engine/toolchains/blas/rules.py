"""Proposes the partitions of a BLAS: one product or convolution with what can follow it."""

from __future__ import annotations

from collage_engine.partition.patterns import Pattern, anything, op
from collage_engine.partition.rule_trees import PatternEntry, byoc_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.toolchains.blas.supports import reason_against
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.pattern_table import anchor_patterns
from collage_engine.toolchains.runtime.supported import against_match, against_sub_graph

_takes = against_match(reason_against)


def attention_patterns(prefix: str) -> list[tuple[str, Pattern]]:
    """Returns the patterns of attention's two products.

    They read or write through transposes, and are scaled and masked.
    """

    def turned() -> Pattern:
        return op("permute_dims", anything())

    def operand() -> Pattern:
        return turned() | anything()

    def times(left: Pattern, right: Pattern) -> Pattern:
        return op("matmul", left, right, commutative=False)

    scores = times(turned(), operand()) | times(anything(), turned())

    def scaled(x: Pattern) -> Pattern:
        return op(("multiply", "divide"), x, chains.scalar("scale"))

    def masked(x: Pattern) -> Pattern:
        return op("add", x, anything("mask"))

    scores = scores.optional(scaled) | scaled(times(anything(), anything()))
    scores = scores.optional(masked)
    context = op("permute_dims", times(anything(), operand()))
    return [(f"{prefix}.context", context), (f"{prefix}.scores", scores)]


def patterns(prefix: str) -> list[PatternEntry]:
    """Returns the composites; those come first that contain transposes."""
    anchors = [
        (name, pattern)
        for name, pattern in anchor_patterns(prefix, residual=True)
        if not name.endswith(".deconv")
    ]
    return [(name, p, _takes) for name, p in (*attention_patterns(prefix), *anchors)]


def partition_spec(name: str) -> PartitionSpec:
    """Returns the partition specification of single calls; larger partitions come from regions."""
    rule = byoc_rules(patterns(name), "NoFusion", max_depth=16, name=name)
    return PartitionSpec(name, rule, against_sub_graph(reason_against))
