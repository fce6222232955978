"""Layout and scene: nothing overlaps, edges end where their boxes are, large graphs stay small.

What crosses between toolchains: found along the edges, told in words, drawn in SVG.
"""

from __future__ import annotations

import copy
import itertools
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest
from onnx import helper

from collage_engine.drawing.box_styles import Colouring, style_boxes
from collage_engine.drawing.groups import (
    LEGIBLE_BOXES,
    display_graph,
    equal_blocks,
    first_view,
    name_scopes,
    sections,
)
from collage_engine.drawing.layout import BOX_HEIGHT, BOX_WIDTH, lay_out
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.report import render
from collage_engine.drawing.scene import Scene, outlines, placement_scene, transitions
from collage_engine.drawing.svg import placement_svg
from collage_engine.model.draft import module_scope
from collage_engine.records.graph import GraphRecord, TensorType
from collage_engine.records.placement import Conversion, LayerTime, Partition, Placement
from collage_engine.wording import amounts
from collage_engine.wording.amounts import bytes_text
from tests.support.graphs import GraphBuilder, operator, record_of
from tests.support.recorded import large_graph, recorded
from tests.support.runs import partition


def chain_with_branches(count: int) -> list[tuple[int, int]]:
    edges = [(i, i + 1) for i in range(count - 1)]
    edges += [(i, i + 5) for i in range(0, count - 5, 7)]
    edges += [(0, count - 1)]
    return edges


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("fold", [True, False])
def test_boxes_never_overlap_and_routes_end_at_their_boxes(upright, fold) -> None:
    edges = chain_with_branches(120)
    in_one_line = 1e-6 if upright else 1e6
    layout = lay_out(121, edges, upright=upright, aspect=1.5 if fold else in_one_line)
    places = layout.places
    for a in range(121):
        for b in range(a):
            apart = (
                abs(places[a][0] - places[b][0]) >= BOX_WIDTH
                or abs(places[a][1] - places[b][1]) >= BOX_HEIGHT
            )
            assert apart, (a, b)
    for (a, b), route in zip(edges, layout.routes, strict=True):
        if not route:
            continue
        for box, (x, y) in ((a, route[0]), (b, route[-1])):
            left, top = places[box]
            assert left - 0.01 <= x <= left + BOX_WIDTH + 0.01
            assert top - 0.01 <= y <= top + BOX_HEIGHT + 0.01


def test_a_deep_graph_is_folded_into_columns_near_the_wanted_aspect() -> None:
    edges = [(i, i + 1) for i in range(999)]
    folded = lay_out(1000, edges, aspect=1.5)
    thread = lay_out(1000, edges, aspect=1e-6)
    assert sum(y == 0.0 for _, y in folded.places) > 5, "columns"
    assert 0.9 < folded.width / folded.height < 2.5
    assert sum(y == 0.0 for _, y in thread.places) == 1 and thread.height > 50 * thread.width
    assert all(folded.routes)


def test_cycles_between_collapsed_groups_do_not_stop_the_layout() -> None:
    layout = lay_out(3, [(0, 1), (1, 2), (2, 0)])
    assert sum(1 for route in layout.routes if not route) == 1


@pytest.mark.parametrize("upright", [True, False])
def test_no_line_slants_across_more_boxes_than_can_be_followed(upright) -> None:
    edges = [(0, reader) for reader in range(1, 31)]
    layout = lay_out(31, edges, upright=upright)
    drawn = [reader for (_, reader), route in zip(edges, layout.routes, strict=True) if route]
    across = 0 if upright else 1
    reach = [abs(layout.places[r][across] - layout.places[0][across]) for r in range(1, 31)]
    nearest = sorted(range(1, 31), key=lambda r: reach[r - 1])[: len(drawn)]
    assert 10 < len(drawn) < 20 and set(drawn) == set(nearest), "the farthest become jumps"


def test_the_first_view_of_a_large_model_is_collapsed_evenly() -> None:
    graph = OperatorGraph(large_graph())
    assert graph.count > 10_000
    groups = {g.id: g for g in sections(graph, name_scopes(graph))}
    closed = first_view(graph, groups.values())
    display = display_graph(graph, groups, closed)
    assert 50 < len(display.boxes) <= LEGIBLE_BOXES + 10
    sizes = {len(b.members) for b in display.boxes if b.kind == "group"}
    assert len(sizes) <= 2, "all but the last are alike"
    assert sorted(m for b in display.boxes for m in b.members) == list(range(len(graph.names)))


def test_scopes_are_those_that_the_exporter_wrote_down() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], "node_relu_1")
    node.metadata_props.add(
        key="pkg.torch.onnx.name_scopes",
        value="['', 'encoder', 'encoder.layer.1', 'encoder.layer.1.attention', 'relu_1']",
    )
    assert module_scope(node) == ("encoder", "layer.1", "attention")
    assert module_scope(helper.make_node("Relu", ["x"], ["y"])) == ()
    calls = [
        operator(at, "add", name=f"n{at}", scope=("encoder", f"layer.{at // 2}")) for at in range(4)
    ]
    groups = name_scopes(OperatorGraph(record_of(*calls)))
    assert [(group.label, group.members) for group in groups] == [
        ("encoder/layer.0", (0, 1)),
        ("encoder/layer.1", (2, 3)),
    ]


def test_blocks_are_equal_that_do_the_same_work_under_names_of_other_numbers() -> None:
    layers = [(op, f"layer.{k}/mlp") for k in range(3) for op in ("matmul", "add", "add")]
    calls = [*layers, ("add", "layer.3/mlp"), ("add", "layer.3/mlp"), ("add", "head")]
    nodes = [
        operator(at, op, *([at - 1] if at else []), name=f"n{at}", scope=tuple(scope.split("/")))
        for at, (op, scope) in enumerate(calls)
    ]
    graph = OperatorGraph(record_of(*nodes))
    blocks = equal_blocks(graph, name_scopes(graph))
    assert blocks == [[(0, 1, 2), (3, 4, 5), (6, 7, 8)]]


def test_a_report_draws_equal_blocks_as_one() -> None:
    document = copy.copy(recorded("resnet"))
    (run,) = document.runs
    assert run.placement is not None
    assert "Equal blocks as one" not in render(document, "html").decode()
    layers = tuple(
        LayerTime(name=part.id, us=2.0, partition=place, operators=part.nodes)
        for place, part in enumerate(run.placement.partitions)
    )
    timed = msgspec.structs.replace(run.placement, layers=layers)
    document.runs = [msgspec.structs.replace(run, placement=timed)]
    page = render(document, "html").decode()
    assert "Equal blocks as one" in page and " equal blocks, 2.00 µs to " in page


def placed(name: str) -> tuple[GraphRecord, Placement]:
    """The graph of a recorded session, and what its run placed."""
    document = recorded(name)
    placement = document.runs[0].placement
    assert placement is not None
    return document.graph, placement


def test_outlines_hold_exactly_the_boxes_of_their_partition() -> None:
    graph, placement = placed("resnet")
    shown = placement_scene(graph, placement)
    found = {o.partition: o for o in outlines(shown, placement)}
    for part in placement.partitions:
        boxes = {m for b in found[part.id].boxes for m in shown.display.boxes[b].members}
        assert boxes == set(part.nodes)


def test_looks_say_unknown_where_nothing_is_known() -> None:
    graph, placement = placed("small")
    shown = placement_scene(graph, placement)
    styles, legend = style_boxes(shown, "toolchain", Colouring())
    assert [entry.label for entry in legend] == ["not placed"]
    styles, legend = style_boxes(shown, "precision", Colouring(placement=placement))
    assert [entry.label for entry in legend] == ["not placed"]
    styles, legend = style_boxes(shown, "toolchain", Colouring(placement=placement))
    assert sum(entry.count for entry in legend) == 14
    tags = {style.tag for style in styles if style.kind == "node"}
    assert tags <= {"TV", "OR", "DN"}


def test_svg_is_well_formed_and_names_every_operator() -> None:
    graph, placement = placed("small")
    strange = [
        msgspec.structs.replace(call, name=call.name.replace("/stem", 'a < b & "c"'))
        for call in graph.nodes
    ]
    graph = msgspec.structs.replace(graph, nodes=tuple(strange))
    root = ElementTree.fromstring(placement_svg(graph, placement))
    titles = " ".join(t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title"))
    for call in graph.nodes:
        assert call.name in titles


@pytest.mark.parametrize(
    "us, text",
    [
        (0.00000335, "0 µs"),
        (None, "–"),
        (0.1234, "0.123 µs"),
        (12.345, "12.3 µs"),
        (999.6, "1.00 ms"),
        (1_234_000.0, "1,234 ms"),
        (float("inf"), "∞"),
        (-12.3, "\N{MINUS SIGN}12.3 µs"),
    ],
)
def test_times_have_three_significant_digits(us, text) -> None:
    assert amounts.time_text(us) == text


def test_equal_blocks_are_laid_out_equally_and_straight_below_each_other() -> None:
    edges, waists, at = [], [0], 0
    for _ in range(40):
        first, last = at, at + 6
        edges += [(first, at + 1), (first, at + 2), (at + 1, at + 3), (at + 3, at + 4)]
        edges += [(at + 2, at + 5), (at + 4, last), (at + 5, last), (first, last)]
        waists.append(last)
        at = last
    layout = lay_out(at + 1, edges, aspect=1e-6)
    assert len({round(layout.places[w][0], 3) for w in waists}) == 1
    steps = {
        round(layout.places[b][1] - layout.places[a][1], 3) for a, b in itertools.pairwise(waists)
    }
    assert len(steps) == 1
    assert all(layout.routes)
    assert len(set(layout.places)) == at + 1


def test_names_that_only_count_types_are_no_scopes() -> None:
    """As PaddlePaddle's exporter writes them: every Conv of the model is no part of it."""
    nodes = []
    for at in range(400):
        what = ("Conv", "Relu", "Add", "Mul")[at % 4]
        name = f"p2o.{what}.{at // 4}"
        # The parameter's index is behind the operators'.
        above = [at - 1 if at else 400]
        inputs = [*above, max(0, at - 3)] if what == "Add" else above
        nodes.append(operator(at, what.lower(), *inputs, name=name, onnx_nodes=(name,)))
    record = msgspec.structs.replace(record_of(*nodes, parameters=("x",)), outputs=(399,))
    graph = OperatorGraph(record)
    assert name_scopes(graph) == ()
    made = sections(graph, ())
    assert {group.kind for group in made} == {"section"}
    first = first_view(graph, made)
    assert 10 < len(first) <= LEGIBLE_BOXES
    for group in made:  # a run of nodes that follow one another
        assert len(group.members) > 1
        assert list(group.members) == list(range(group.members[0], group.members[-1] + 1))
    inner = [group.members[0] for group in made[1:]]
    assert all(at % 4 in (0, 3) for at in inner), "no section begins within a branch"


VALUE = TensorType((1, 64, 56, 56), "float32")


def graph(count: int = 4) -> GraphRecord:
    b, ops = GraphBuilder(VALUE.shape), ("nn.conv2d", "add", "nn.relu", "nn.max_pool2d")
    value = b.parameter()
    for at in range(count):
        value = b.call(ops[at % len(ops)], value, name=f"n{at}")
        names = ("conv",) if at < 2 else (f"n{at}",)
        b.nodes[at] = msgspec.structs.replace(b.nodes[at], onnx_nodes=names)
    return msgspec.structs.replace(b.build(value).record, output_names=("y",))


def part(name: str, toolchain: str, nodes: tuple[int, ...], **fields: object) -> Partition:
    return partition(*nodes, id=name, toolchain=toolchain, us=10.0, **fields)


def placement_of(*parts: Partition, conversions: tuple[Conversion, ...] = ()) -> Placement:
    return Placement(partitions=parts, estimated_us=30.0, conversions=conversions)


def drawn(record: GraphRecord):
    operators = OperatorGraph(record)
    display = display_graph(operators, {}, ())
    return Scene(operators, {}, display, lay_out(len(display.boxes), display.edges))


def test_only_what_changes_toolchain_format_or_device_is_a_transition() -> None:
    shown = drawn(graph())
    same = placement_of(part("p0", "tvm", (0, 1)), part("p1", "tvm", (2, 3)))
    assert transitions(shown, same) == () and transitions(shown, None) == ()
    mixed = placement_of(part("p0", "onednn", (0, 1)), part("p1", "tvm", (2, 3)))
    (found,) = transitions(shown, mixed)
    assert shown.display.edges[found.edge] == (1, 2)
    assert found.label == bytes_text(VALUE.bytes) == "784 KiB"
    assert found.sentence == "oneDNN hands 784 KiB over to TVM"
    other = placement_of(part("p0", "tvm", (0, 1)), part("p1", "tvm", (2, 3), device="cuda"))
    (found,) = transitions(shown, other)
    assert "cpu→cuda" in found.label


def test_a_conversion_stands_beside_its_bytes_with_its_cost() -> None:
    shown = drawn(graph())
    conversion = Conversion(node=1, source="nhwc", target="plain", us=8.75)
    mixed = placement_of(
        part("p0", "tvm", (0, 1), gives={1: "nhwc"}),
        part("p1", "tvm", (2, 3)),
        conversions=(conversion,),
    )
    (found,) = transitions(shown, mixed)
    assert found.label == "784 KiB nhwc→plain 8.75 µs"


def test_the_picture_of_a_report_draws_transitions_and_names_onnx_types() -> None:
    mixed = placement_of(part("p0", "onednn", (0, 1)), part("p1", "tvm", (2, 3)))
    svg = placement_svg(graph(), mixed)
    assert "hands 784 KiB over to" in svg and svg.count("<polygon") == 1
    for title in (">Conv<", ">Relu<", ">MaxPool<"):
        assert title in svg
    assert "2 nodes · 10.0 µs · 50 %" in svg, "the legend has time and share"
