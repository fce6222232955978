"""What crosses between toolchains: found along the edges, told in words, drawn in SVG."""

from __future__ import annotations

import msgspec
import pytest

from collage_engine.drawing.box_styles import ColouringData, style_boxes
from collage_engine.drawing.groups import display_graph
from collage_engine.drawing.hand_overs import hand_overs, labels_on_the_left
from collage_engine.drawing.layout import lay_out
from collage_engine.drawing.operators import operator_graph
from collage_engine.drawing.scene import arrow_head, layout_request, scene, skip_curve
from collage_engine.drawing.svg import placement_svg
from collage_engine.records.graph import GraphRecord, Node, TensorType
from collage_engine.records.placement import Conversion, Partition, Placement

VALUE = TensorType((1, 64, 56, 56), "float32")


def graph(count: int = 4) -> GraphRecord:
    nodes = [Node(index=0, form="parameter", name="x", types=(VALUE,))]
    ops = ("nn.conv2d", "add", "nn.relu", "nn.max_pool2d")
    nodes += [
        Node(
            index=at + 1,
            form="call",
            op=ops[at % len(ops)],
            inputs=(at,),
            types=(VALUE,),
            name=f"n{at}",
            onnx_nodes=("conv",) if at < 2 else (f"n{at}",),
        )
        for at in range(count)
    ]
    return GraphRecord(nodes=tuple(nodes), inputs=(0,), outputs=(count,), output_names=("y",))


def part(name: str, toolchain: str, nodes: tuple[int, ...], **fields: object) -> Partition:
    return Partition(
        id=name,
        candidate=f"{toolchain}:{name}",
        toolchain=toolchain,
        config={},
        nodes=nodes,
        onnx_nodes=(),
        estimated_us=10.0,
        **fields,  # type: ignore[arg-type]
    )


def placed(*parts: Partition, conversions: tuple[Conversion, ...] = ()) -> Placement:
    return Placement(partitions=parts, estimated_us=30.0, conversions=conversions)


def drawn(record: GraphRecord):
    operators = operator_graph(record)
    display = display_graph(operators, {}, ())
    return scene(operators, {}, display, lay_out(layout_request(display)))


def test_only_what_changes_toolchain_format_or_device_is_a_hand_over() -> None:
    shown = drawn(graph())
    same = placed(part("p0", "tvm", (0, 1)), part("p1", "tvm", (2, 3)))
    assert hand_overs(shown, same) == () and hand_overs(shown, None) == ()
    mixed = placed(part("p0", "onednn", (0, 1)), part("p1", "tvm", (2, 3)))
    (found,) = hand_overs(shown, mixed)
    assert shown.display.edges[found.edge] == (1, 2)
    assert (found.source, found.target, found.bytes) == ("onednn", "tvm", VALUE.bytes)
    assert found.label == "784 KiB" and found.us is None
    other = placed(part("p0", "tvm", (0, 1)), part("p1", "tvm", (2, 3), device="cuda"))
    (found,) = hand_overs(shown, other)
    assert "cpu→cuda" in found.label


def test_a_conversion_stands_beside_its_bytes_with_its_cost() -> None:
    shown = drawn(graph())
    conversion = Conversion(node=1, source="nhwc", target="plain", us=8.75)
    mixed = placed(
        part("p0", "tvm", (0, 1), gives={1: "nhwc"}),
        part("p1", "tvm", (2, 3)),
        conversions=(conversion,),
    )
    (found,) = hand_overs(shown, mixed)
    assert found.conversions == (conversion,) and found.us == 8.75
    assert found.label == "784 KiB nhwc→plain 8.75 µs"


def test_the_picture_of_a_report_draws_hand_overs_and_names_onnx_types() -> None:
    mixed = placed(part("p0", "onednn", (0, 1)), part("p1", "tvm", (2, 3)))
    svg = placement_svg(graph(), mixed)
    assert "hands 784 KiB over to" in svg and svg.count("<polygon") == 1
    for title in (">Conv<", ">Relu<", ">MaxPool<"):
        assert title in svg
    assert "2 nodes · 10.0 µs · 50 %" in svg, "the legend has time and share"


def test_an_arrow_points_at_the_reader_and_a_skip_leaves_the_columns() -> None:
    tip, one, two = arrow_head([(0.0, 0.0), (0.0, 50.0)], 10.0)
    assert tip == (0.0, 50.0) and {one[1], two[1]} == {40.0}
    assert sorted((one[0], two[0])) == [-5.0, 5.0]
    shown = drawn(graph())
    start, out, back, end = skip_curve(shown, 0, 3)
    assert out[0] > start[0] and back[0] > end[0]


def test_costs_are_coloured_by_their_share_and_the_dearest_is_darkest() -> None:
    shown = drawn(graph())
    dear = msgspec.structs.replace(part("p0", "tvm", (0, 1)), estimated_us=97.0)
    cheap = msgspec.structs.replace(part("p1", "tvm", (2, 3)), estimated_us=3.0)
    styles, legend = style_boxes(shown, "cost", ColouringData(placement=placed(dear, cheap)))
    assert [entry.label for entry in legend] == ["over 30 % of 100 µs", "3–10 % of 100 µs"]
    dark, light = (int(styles[box].colour[1:3], 16) for box in (0, 2))
    assert dark < light and styles[0].text == "#ffffff"
    styles, _ = style_boxes(shown, "toolchain", ColouringData(placement=placed(dear, cheap)))
    assert styles[0].share == 1.0 and styles[2].share == pytest.approx(3 / 97)
    assert styles[1].share is None, "a partition's cost is drawn once"


def test_two_labels_at_one_box_are_not_written_over_each_other() -> None:
    size = "96.0 KiB"
    assert labels_on_the_left([(100.0, 50.0), (120.0, 50.0)], [size, size]) == {0}
    assert labels_on_the_left([(120.0, 50.0), (100.0, 50.0)], [size, size]) == {1}
    assert labels_on_the_left([(100.0, 50.0), (200.0, 50.0)], [size, size]) == set()
    assert labels_on_the_left([(100.0, 50.0), (120.0, 90.0)], [size, size]) == set()
