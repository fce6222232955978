"""Proposes sibling anchors, such as attention's projections, and quantised composites.

The rest comes from blocks, regions and the whole model, which suit it best: a call has a price of
its own, and inside a partition it keeps layouts that small ones convert to and fro. So it has no
rules for anchors with parts of their epilogues, which would double its candidates and win nothing.
"""

from __future__ import annotations

from collage_engine.partition.quantized import pattern_table
from collage_engine.partition.rule_trees import anchor_rules, composite_rules, union_rules
from collage_engine.partition.spec import PartitionSpec
from collage_engine.toolchains.openvino.supports import reason_against
from collage_engine.toolchains.runtime.supported import against_sub_graph


def partition_spec(name: str) -> PartitionSpec:
    """Returns the rule tree: quantised composites as they are, and groups of siblings."""
    # They are whole, as in parts they are float32; OpenVINO makes 8-bit kernels of whole ones.
    integers = composite_rules("quantized", pattern_table(name))
    rule = union_rules(name, integers, anchor_rules(vertical=False))
    return PartitionSpec(name, rule, against_sub_graph(reason_against))
