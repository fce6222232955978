"""What crosses between toolchains: found along the edges, told in words, drawn in SVG."""

from __future__ import annotations

import msgspec

from collage_engine.drawing.groups import display_graph
from collage_engine.drawing.layout import lay_out
from collage_engine.drawing.operators import operator_graph
from collage_engine.drawing.scene import Scene
from collage_engine.drawing.svg import placement_svg
from collage_engine.drawing.transitions import transitions
from collage_engine.records.graph import GraphRecord, TensorType
from collage_engine.records.placement import Conversion, Partition, Placement
from tests.support.graphs import GraphBuilder
from tests.support.runs import partition

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


def placed(*parts: Partition, conversions: tuple[Conversion, ...] = ()) -> Placement:
    return Placement(partitions=parts, estimated_us=30.0, conversions=conversions)


def drawn(record: GraphRecord):
    operators = operator_graph(record)
    display = display_graph(operators, {}, ())
    return Scene(operators, {}, display, lay_out(len(display.boxes), display.edges))


def test_only_what_changes_toolchain_format_or_device_is_a_transition() -> None:
    shown = drawn(graph())
    same = placed(part("p0", "tvm", (0, 1)), part("p1", "tvm", (2, 3)))
    assert transitions(shown, same) == () and transitions(shown, None) == ()
    mixed = placed(part("p0", "onednn", (0, 1)), part("p1", "tvm", (2, 3)))
    (found,) = transitions(shown, mixed)
    assert shown.display.edges[found.edge] == (1, 2)
    assert (found.source, found.target, found.bytes) == ("onednn", "tvm", VALUE.bytes)
    assert found.label == "784 KiB" and found.us is None
    other = placed(part("p0", "tvm", (0, 1)), part("p1", "tvm", (2, 3), device="cuda"))
    (found,) = transitions(shown, other)
    assert "cpu→cuda" in found.label


def test_a_conversion_stands_beside_its_bytes_with_its_cost() -> None:
    shown = drawn(graph())
    conversion = Conversion(node=1, source="nhwc", target="plain", us=8.75)
    mixed = placed(
        part("p0", "tvm", (0, 1), gives={1: "nhwc"}),
        part("p1", "tvm", (2, 3)),
        conversions=(conversion,),
    )
    (found,) = transitions(shown, mixed)
    assert found.conversions == (conversion,) and found.us == 8.75
    assert found.label == "784 KiB nhwc→plain 8.75 µs"


def test_the_picture_of_a_report_draws_transitions_and_names_onnx_types() -> None:
    mixed = placed(part("p0", "onednn", (0, 1)), part("p1", "tvm", (2, 3)))
    svg = placement_svg(graph(), mixed)
    assert "hands 784 KiB over to" in svg and svg.count("<polygon") == 1
    for title in (">Conv<", ">Relu<", ">MaxPool<"):
        assert title in svg
    assert "2 nodes · 10.0 µs · 50 %" in svg, "the legend has time and share"
