"""Formats at borders: which values have one, who is offered it, what it costs, how it is told.

What conversions cost is kept for the toolchain that writes them, whichever a run uses.
"""

from __future__ import annotations

from pathlib import Path

from collage_engine.machine.run_control import RunControl
from collage_engine.model.formats import (
    channels_last_border,
    image_values,
)
from collage_engine.partition.candidate import make_candidate
from collage_engine.partition.enumerate import CandidateSource, enumerate_candidates
from collage_engine.records.candidate import CandidateRecord, Cost
from collage_engine.records.format import (
    NHWC,
    PLAIN,
    conversion_constant,
)
from collage_engine.records.graph import TensorType, operator_set
from collage_engine.store.keys import KeyContext, KeyMaker
from collage_engine.store.store import Store
from collage_engine.timing.conversions import ConversionRequest
from collage_engine.timing.transitions import ConstantsBench
from tests.support.candidates import row
from tests.support.graphs import GraphBuilder, instance

IMAGE = (1, 8, 6, 6)
LAYOUT = {"data_layout": "NCHW"}


def small_net():
    """conv, relu, conv, softmax over rows of a reshape; operators 0 to 4."""
    b = GraphBuilder(IMAGE)
    x = b.parameter("x", IMAGE)
    y = b.call("nn.conv2d", x, b.constant((8, 8, 3, 3)), **LAYOUT)
    y = b.call("nn.relu", y)
    y = b.call("nn.conv2d", y, b.constant((8, 8, 3, 3)), **LAYOUT)
    y = b.call("reshape", y, shape=(8, 36))
    return b.build(b.call("nn.softmax", y, shape=(8, 36)))


def test_images_are_found_through_what_carries_them_and_attention_is_none():
    graph = small_net()
    conv, relu, again, reshape, softmax = graph.operators
    assert {conv, relu, again} <= image_values(graph)
    assert not {reshape, softmax} & image_values(graph)
    b = GraphBuilder((1, 4, 8, 8))
    query = b.call("permute_dims", b.parameter("x"))
    assert not image_values(b.build(b.call("nn.softmax", b.call("matmul", query, query))))

    b = GraphBuilder(IMAGE)
    x = b.parameter("x", IMAGE)
    parts = b.call("split", b.call("nn.relu", x), results=2, axis=1)
    left, right = b.result(parts, 0), b.result(parts, 1)
    joined = b.call("concat", left, right, axis=1)
    pooled = b.call("nn.max_pool2d", joined, layout="NCHW")
    graph = b.build(pooled)
    # Backwards from the pool as well, through the list and the results of the split.
    assert {left, b.index(right), joined, pooled} <= image_values(graph)


def test_a_border_leaves_out_parameters_other_shapes_and_what_only_leaves_the_model():
    graph = small_net()
    assert channels_last_border(graph, operator_set((0,))) == ({}, {0: NHWC})
    assert channels_last_border(graph, operator_set((1,))) == ({0: NHWC}, {1: NHWC})
    assert channels_last_border(graph, operator_set((3,))) == ({2: NHWC}, {})
    assert channels_last_border(graph, operator_set((4,))) == ({}, {})
    assert channels_last_border(graph, operator_set((0, 1, 2, 3, 4))) == ({}, {})

    b = GraphBuilder(IMAGE)
    x = b.call("nn.relu", b.parameter("x", IMAGE))
    first = b.call("nn.max_pool2d", x, layout="NCHW")
    second = b.call("nn.relu", first)
    graph = b.build(first, second)
    # Its user wants the second plain; the first is read inside the model too.
    assert channels_last_border(graph, operator_set((2,))) == ({1: NHWC}, {})
    assert channels_last_border(graph, operator_set((1,))) == ({0: NHWC}, {1: NHWC})


def all_of(name: str, formats: tuple[str, ...]) -> CandidateSource:
    return CandidateSource(instance(name), None, lambda index: None, formats=formats)


def test_only_who_can_is_offered_and_ids_keys_differ():
    graph = small_net()
    found = enumerate_candidates(graph, [all_of("a", (PLAIN, NHWC)), all_of("b", (PLAIN,))])
    assert all(not c.takes and not c.gives for c in found if c.instance.id == "b")
    ours = {
        (c.nodes, tuple(c.takes.items()), tuple(c.gives.items())): c
        for c in found
        if c.instance.id == "a"
    }
    assert ((1,), (), ()) in ours and ((1,), ((0, NHWC),), ((1, NHWC),)) in ours
    assert len({c.id for c in found}) == len(found)
    assert [c for c in found if c.instance.id == "a" and c.nodes == (4,)] == [ours[(4,), (), ()]]
    makers = KeyMaker(graph)
    forms = {key: makers.form_of(c) for key, c in ours.items()}
    conv = forms[(2,), ((1, NHWC),), ((2, NHWC),)]
    assert conv != forms[(2,), (), ()] and "as nhwc" in conv


def measured(graph, name: str, nodes: tuple[int, ...], us: float, nhwc: bool) -> CandidateRecord:
    takes, gives = channels_last_border(graph, operator_set(nodes)) if nhwc else ({}, {})
    record = make_candidate(graph, instance(name), nodes, rule="t", takes=takes, gives=gives)
    cost = Cost(state="measured", median_us=us, low_us=us, high_us=us, count=1)
    return row(record, cost)


WANTED = (TensorType((1, 8, 4, 4), "float32"), PLAIN, NHWC)


def canned(request: ConversionRequest) -> dict[str, float]:
    """Answer as the child does."""
    return {conversion_constant(*each): 3.0 for each in request.conversions}


def test_costs_of_conversions_do_not_depend_on_which_toolchains_a_run_names(
    tmp_path: Path,
) -> None:
    measured: list[str] = []

    def found(sources: dict[str, str]) -> dict[str, float]:
        context = KeyContext(tvm_version="t", target="c", fingerprint="f", sources=sources)
        bench = ConstantsBench(
            context=context, store=store, control=RunControl(), now=measured.append
        )
        return bench.conversions([WANTED], 1, f"{__name__}:canned")

    with Store(tmp_path / "store.db") as store:
        first = found({"tvm": "1", "onednn": "2"})
        assert found({"onednn": "2"}) == first == {conversion_constant(*WANTED): 3.0}
    assert len(measured) == 1
