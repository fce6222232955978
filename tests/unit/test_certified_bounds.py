"""Lower bounds count only what nobody can leave out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from collage_engine.bounds.certified import (
    certified_bounds,
    lower_bound_us,
    machine_peaks,
    raise_peaks,
)
from collage_engine.bounds.conv_windows import Window
from collage_engine.bounds.work import WINOGRAD, WorkCounter
from collage_engine.machine.peaks import Level, Peaks
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.errors import MeasureError
from collage_engine.records.graph import GraphRecord, Node, TensorType
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.store import Store


def graph(*nodes: Node) -> DataflowGraph:
    inputs = tuple(n.index for n in nodes if n.form == "parameter")
    return DataflowGraph(GraphRecord(nodes=nodes, inputs=inputs, outputs=(nodes[-1].index,)))


def value(i: int, *shape: int, form: str = "parameter") -> Node:
    return Node(index=i, form=form, types=(TensorType(shape, "float32"),))  # type: ignore[arg-type]


def call(i: int, op: str, inputs: tuple[int, ...], *shape: int, **attributes) -> Node:
    return Node(
        index=i,
        form="call",
        op=op,
        inputs=inputs,
        types=(TensorType(shape, "float32"),),
        attributes=attributes,
    )


def conv(i: int, inputs: tuple[int, ...], *shape: int, **attributes) -> Node:
    given = {
        "data_layout": "NCHW",
        "kernel_layout": "OIHW",
        "strides": [1, 1],
        "padding": [0, 0, 0, 0],
        "dilation": [1, 1],
        "groups": 1,
    } | attributes
    return call(i, "nn.conv2d", inputs, *shape, **given)


def test_pairs_in_range_against_counting():
    rng = random.Random(3)
    for _ in range(300):
        size, taps = rng.randint(1, 12), rng.randint(1, 5)
        stride, dilation, before = rng.randint(1, 4), rng.randint(1, 3), rng.randint(0, 4)
        out = rng.randint(1, 10)
        places = [[o * stride + t * dilation - before for t in range(taps)] for o in range(out)]
        counted = sum(0 <= p < size for row in places for p in row)
        window = Window(size, out, taps, stride, dilation, before)
        assert window.pairs_in_range() == counted
        if window.covers_input():
            assert {p for row in places for p in row} >= set(range(size))


def test_matrix_product():
    g = graph(value(0, 4, 8), value(1, 8, 16, form="constant"), call(2, "matmul", (0, 1), 4, 16))
    work = WorkCounter(g).of(1 << 2)
    assert work.operations == {"float32": 2.0 * 4 * 8 * 16}
    assert work.read_bytes == 4 * (4 * 8 + 8 * 16) and work.write_bytes == 4 * 64


def test_convolution_leaves_padding_out_and_allows_for_winograd():
    one = graph(
        value(0, 1, 8, 7, 7),
        value(1, 16, 8, 1, 1, form="constant"),
        conv(2, (0, 1), 1, 16, 7, 7),
    )
    assert WorkCounter(one).of(4).operations["float32"] == 2 * 8 * 16 * 49
    padded = graph(
        value(0, 1, 8, 7, 7),
        value(1, 16, 8, 3, 3, form="constant"),
        conv(2, (0, 1), 1, 16, 7, 7, padding=[1, 1, 1, 1]),
    )
    assert WorkCounter(padded).of(4).operations["float32"] == pytest.approx(
        2 * 8 * 16 * 19 * 19 / WINOGRAD
    )
    assert WorkCounter(padded, direct=True).of(4).operations["float32"] == 2 * 8 * 16 * 19 * 19
    depthwise = graph(
        value(0, 1, 8, 9, 9),
        value(1, 8, 1, 3, 3, form="constant"),
        conv(2, (0, 1), 1, 8, 4, 4, groups=8, strides=[2, 2]),
    )
    assert WorkCounter(depthwise).of(4).operations["float32"] == 2 * 8 * 16 * 9


def test_a_strided_kernel_need_not_read_the_whole_image():
    g = graph(
        value(0, 1, 8, 8, 8),
        value(1, 16, 8, 1, 1, form="constant"),
        conv(2, (0, 1), 1, 16, 4, 4, strides=[2, 2]),
    )
    assert WorkCounter(g).of(4).read_bytes == 4 * 16 * 8


def test_a_packed_layout_counts_nothing():
    g = graph(
        value(0, 1, 1, 8, 8, 8),
        value(1, 2, 1, 1, 1, 8, 8, form="constant"),
        conv(2, (0, 1), 1, 2, 8, 8, 8, data_layout="NCHW8c", kernel_layout="OIHW8i8o"),
    )
    work = WorkCounter(g).of(4)
    assert work.operations == {} and work.read_bytes == work.write_bytes == 0


def test_only_what_is_needed_whole_counts():
    chain = [value(0, 4, 8), call(1, "nn.relu", (0,), 4, 8)]
    whole = graph(*chain, call(2, "tanh", (1,), 4, 8))
    assert WorkCounter(whole).of(node_set([1, 2])).read_bytes == 128
    part = graph(*chain, call(2, "strided_slice", (1,), 1, 8))
    work = WorkCounter(part).of(node_set([1, 2]))
    assert work.read_bytes == 0 and work.write_bytes == 0
    assert WorkCounter(part).of(1 << 1).read_bytes == 128, "alone it has to compute all"


def test_a_shared_input_is_read_once_and_inner_values_not_at_all():
    g = graph(value(0, 100), call(1, "nn.relu", (0,), 100), call(2, "add", (0, 1), 100))
    work = WorkCounter(g).of(node_set([1, 2]))
    assert work.read_bytes == 400 and work.write_bytes == 400


def test_views_cost_nothing():
    g = graph(value(0, 4, 8), call(1, "reshape", (0,), 32))
    work = WorkCounter(g).of(2)
    assert (work.operations, work.read_bytes, work.write_bytes) == ({}, 0, 0)


def test_what_rounds_to_eight_bits_may_be_computed_in_whole_numbers():
    small = TensorType((4, 8), "int8")
    g = graph(
        Node(index=0, form="parameter", types=(small,)),
        call(1, "dequantize", (0,), 4, 8),
        value(2, 8, 16, form="constant"),
        call(3, "matmul", (1, 2), 4, 16),
    )
    inside = WorkCounter(g).of(node_set([1, 3]))
    assert inside.operations == {"int8": 1024.0} and inside.read_bytes == 32 + 128
    assert WorkCounter(g).of(1 << 3).operations == {"float32": 1024.0}


def test_bounds_are_set_on_records():
    peaks = Peaks(flops={"float32": 1e9}, levels=(Level(0, 1e12),), hertz=1.0)
    g = graph(
        value(0, 1, 8, 7, 7),
        value(1, 16, 8, 3, 3, form="constant"),
        conv(2, (0, 1), 1, 16, 7, 7, padding=[1, 1, 1, 1]),
        call(3, "reshape", (2,), 784),
    )
    records = [
        CandidateRecord(
            id=f"{name}{nodes}", instance=ToolchainInstance(toolchain=name), nodes=nodes, label=""
        )
        for name in ("straight", "clever")
        for nodes in ((0,), (1,))
    ]
    found = certified_bounds(g, records, peaks, direct={"straight"})
    bounds = [found.get(r.id) for r in records]
    assert bounds[0] == pytest.approx(bounds[2] * WINOGRAD) and bounds[0] > 0
    assert bounds[1] is None and bounds[3] is None


def test_the_bound_is_the_larger_of_arithmetic_and_memory():
    peaks = Peaks(flops={"float32": 1e9}, levels=(Level(0, 1e6),), hertz=1.0)
    g = graph(value(0, 4, 8), value(1, 8, 16, form="constant"), call(2, "matmul", (0, 1), 4, 16))
    work = WorkCounter(g).of(4)
    assert lower_bound_us(work, peaks, 1) == pytest.approx(640.0)
    fast = Peaks(flops={"float32": 1e9}, levels=(Level(0, 1e12),), hertz=1.0)
    assert lower_bound_us(work, fast, 2) == pytest.approx(1.024 / 2)


def test_peaks_are_measured_once_and_kept(tmp_path, monkeypatch):
    made = []

    def measure() -> Peaks:
        made.append(1)
        return Peaks(flops={"float32": 5.0}, levels=(Level(0, 2.0), Level(9, 1.0)), hertz=1.0)

    monkeypatch.setattr("collage_engine.bounds.certified.measure_peaks", measure)
    with Store(tmp_path / "m.db") as store:
        first, second = machine_peaks(store), machine_peaks(store)
    assert first == second == measure() and len(made) == 2

    def fail() -> Peaks:
        raise MeasureError("no compiler")

    monkeypatch.setattr("collage_engine.bounds.certified.measure_peaks", fail)
    assert machine_peaks(None) is None


@pytest.mark.parametrize(("stride", "out", "read"), [(2, 4, 64), (3, 3, 0)])
def test_a_pooling_reads_whole_what_its_windows_cover(stride: int, out: int, read: int):
    """8×8 data, windows of 2×2: with a stride of three every third row is never looked at."""
    pool = call(
        1,
        "nn.max_pool2d",
        (0,),
        1,
        1,
        out,
        out,
        layout="NCHW",
        pool_size=[2, 2],
        strides=[stride, stride],
        dilation=[1, 1],
        padding=[0, 0, 0, 0],
    )
    # The result is written by an operator that is needed whole, so that the pooling is, too.
    after = call(2, "nn.relu", (1,), 1, 1, out, out)
    work = WorkCounter(graph(value(0, 1, 1, 8, 8), pool, after)).of(node_set([1, 2]))
    assert work.read_bytes == 4 * read


def test_a_measured_time_below_its_bound_raises_the_peaks_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Peaks(flops={"float32": 60e9}, levels=(Level(0, 100e9),), hertz=2e9)
    monkeypatch.setattr("collage_engine.bounds.certified.measure_peaks", lambda: slow)
    with Store(tmp_path / "m.db") as store:
        assert machine_peaks(store) == slow
        raise_peaks(store, 0.8)
        raised = machine_peaks(store)
        assert raised is not None and raised.flops["float32"] == pytest.approx(75e9)
        assert raised.levels[0].bytes_per_s == pytest.approx(125e9)
        raise_peaks(store, 0.1)  # no clock explains that
        assert machine_peaks(store) == raised
