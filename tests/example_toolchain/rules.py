"""Proposes the example's candidates: a product with bias and ReLU, and chains of operators."""

from __future__ import annotations

from collage_engine.partition.patterns import anything, constant, op
from collage_engine.partition.rules import PartitionRule, PatternEntry, byoc_rules
from collage_engine.toolchains.runtime.chains import against_match
from tests.example_toolchain.operators import PRODUCT, reason_against


def partition_spec(name: str) -> PartitionRule:
    """Returns the rules: pattern composites and single operators, joined step by step."""
    product = op(PRODUCT, anything("data"), anything("matrix"), commutative=False)
    pattern = product.optional(lambda x: op("add", x, constant("bias")))
    pattern = pattern.optional(lambda x: op("nn.relu", x))
    table: list[PatternEntry] = [(f"{name}.product", pattern, against_match(reason_against))]
    return byoc_rules(table, True, name=name, supports=reason_against)
