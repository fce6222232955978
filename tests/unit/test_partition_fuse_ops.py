"""FuseOps on the dataflow graph: phases, kinds, limits."""

from __future__ import annotations

import random

from collage_engine.partition.fuse_ops import fuse_ops
from collage_engine.records.graph import members
from tests.support.graphs import GraphBuilder, chain, conv_block, random_graph


def groups(graph, **limits) -> list[tuple[int, ...]]:
    return [tuple(members(g)) for g in fuse_ops(graph, **limits)]


def by_label(graph, **limits) -> list[str]:
    return ["+".join(graph.nodes[i].op for i in g) for g in groups(graph, **limits)]


class TestGroups:
    def test_anchor_takes_its_epilogue(self) -> None:
        b = GraphBuilder((1, 64, 8, 8))
        graph = b.build(conv_block(b, conv_block(b, b.parameter())))
        assert by_label(graph) == ["nn.conv2d+add+nn.relu"] * 2

    def test_injective_waits_for_the_second_phase(self) -> None:
        assert by_label(chain("nn.relu", "reshape", "exp")) == ["nn.relu+reshape+exp"]
        b = GraphBuilder((1, 64, 8, 8))
        graph = b.build(b.call("reshape", conv_block(b, b.parameter())))
        assert by_label(graph) == ["nn.conv2d+add+nn.relu", "reshape"]

    def test_diamond_fuses_to_the_post_dominator(self) -> None:
        b = GraphBuilder()
        x = b.call("exp", b.parameter())
        graph = b.build(b.call("add", b.call("abs", x), b.call("tanh", x)))
        assert by_label(graph) == ["exp+abs+tanh+add"]

    def test_a_value_that_leaves_ends_its_group(self) -> None:
        b = GraphBuilder()
        x = b.call("exp", b.parameter())
        y = b.call("abs", x)
        assert by_label(b.build(x, y)) == ["exp", "abs"]

    def test_group_limit(self) -> None:
        graph = chain(*["exp"] * 300)
        assert [len(g) for g in groups(graph)] == [256, 44]
        assert max(len(g) for g in groups(graph, max_group=10)) == 10
        assert all(len(g) == 1 for g in groups(graph, max_group=1))

    def test_groups_are_a_partition_into_convex_sets(self) -> None:
        for seed in range(150):
            graph = random_graph(random.Random(seed), 14)
            seen = 0
            for group in fuse_ops(graph):
                assert not group & seen
                seen |= group
                assert graph.convex(group), (seed, tuple(members(group)))
                anchors = sum(graph.nodes[i].kind == "anchor" for i in members(group))
                assert anchors <= 1
            assert seen == graph.everything


class TestSeveralValues:
    def test_a_list_is_fused_into_its_reader(self) -> None:
        b = GraphBuilder()
        x = b.parameter()
        joined = b.call("concat", b.call("exp", x), b.call("reshape", x))
        assert by_label(b.build(b.call("tanh", joined))) == ["exp+reshape+concat+tanh"]

    def test_a_field_of_a_tuple_is_fused_as_an_injective_operator(self) -> None:
        b = GraphBuilder()
        parts = b.call("split", b.parameter(), results=2)
        ends = [b.call("exp", b.result(parts, place)) for place in range(2)]
        assert by_label(b.build(*ends)) == ["split", "exp", "exp"]
        assert by_label(b.build(b.call("add", *ends))) == ["split+exp+exp+add"]


def test_broadcast_over_an_equal_operand_is_elementwise_for_relax() -> None:
    # A gate of smaller shape: Relax sees one elementwise loop nest.
    b = GraphBuilder((1, 64, 8, 8))
    x = b.parameter()
    gate = b.call("nn.conv2d", x, b.constant((64, 64, 1, 1)), shape=(1, 64, 1, 1))
    graph = b.build(b.call("multiply", x, gate))
    assert by_label(graph) == ["nn.conv2d+multiply"]


def test_reductions_in_several_blocks_are_anchors_for_relax() -> None:
    assert by_label(chain("exp", "mean", "tanh")) == ["exp", "mean+tanh"]
    graph = chain("reshape", "take", "exp")
    assert by_label(graph) == ["reshape", "take", "exp"]
