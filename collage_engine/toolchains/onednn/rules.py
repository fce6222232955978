"""Proposes the partitions of oneDNN.

They are operators with post-ops, written-out functions and fused chains.
"""

from __future__ import annotations

from collage_engine.partition.quantized import pattern_table
from collage_engine.partition.rule_trees import (
    PatternEntry,
    anchor_rules,
    byoc_rules,
    union_rules,
)
from collage_engine.partition.spec import PartitionSpec
from collage_engine.toolchains.onednn.generate import reason_against
from collage_engine.toolchains.runtime.pattern_table import anchor_patterns, chain_patterns
from collage_engine.toolchains.runtime.supported import against_match, against_sub_graph

_takes = against_match(reason_against)


def library_table(prefix: str) -> list[PatternEntry]:
    """Returns what another toolchain's kernels can call: a product or convolution with post-ops."""
    return [(n, p, _takes) for n, p in anchor_patterns(prefix)]


def partition_spec(name: str) -> PartitionSpec:
    """Returns the rule tree that proposes oneDNN's candidates.

    They are operators with post-ops, written-out functions, and what TVM's fusion would join of
    them.
    """
    table: list[PatternEntry] = [*pattern_table(name)]
    table += [
        (label, pattern, _takes)
        for label, pattern in (
            *anchor_patterns(name),
            *chain_patterns(name),
        )
    ]
    rule = union_rules(
        name,
        byoc_rules(table, "TVMFusion", max_depth=6, name=name, supports=reason_against),
        anchor_rules(),
    )
    return PartitionSpec(name, rule, against_sub_graph(reason_against))
