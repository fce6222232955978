"""FuseOps on the dataflow graph: limits, and what holds of any groups.

Which groups there are is compared with Relax's own pass (``engine/test_fuse_ops_against_relax``).
"""

from __future__ import annotations

import random

from collage_engine.partition.fuse_ops import MAX_GROUP, fuse_ops
from collage_engine.records.graph import members
from tests.support.graphs import chain, random_graph


def test_groups_hold_no_more_than_the_limit() -> None:
    graph = chain(*["exp"] * 300)
    for most, sizes in ((MAX_GROUP, [256, 44]), (10, [10] * 30), (1, [1] * 300)):
        assert [group.bit_count() for group in fuse_ops(graph, most)] == sizes


def test_groups_are_a_partition_into_convex_sets() -> None:
    for seed in range(150):
        graph = random_graph(random.Random(seed), 14)
        seen = 0
        for group in fuse_ops(graph):
            assert not group & seen
            seen |= group
            assert graph.convex(group), (seed, tuple(members(group)))
            assert sum(graph.nodes[i].kind == "anchor" for i in members(group)) <= 1
        assert seen == graph.everything
