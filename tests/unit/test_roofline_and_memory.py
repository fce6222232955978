"""What is left to win, and what memory partitions take: counted or measured, never invented."""

from __future__ import annotations

from collage_engine.drawing.memory_figures import partition_memory, toolchain_memory
from collage_engine.drawing.roofline import partition_roofs, roofline_sentence
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.graph import GraphRecord, Node, TensorType
from collage_engine.records.memory import MemorySeen, MemoryUse
from collage_engine.records.placement import Partition, Placement
from collage_engine.records.toolchain import ToolchainInstance


def part(name: str, nodes: tuple[int, ...], us: float | None, last_us: float | None = None):
    return Partition(
        id=name,
        candidate=f"c{name}",
        toolchain="tvm" if nodes[0] == 0 else "onednn",
        config={},
        nodes=nodes,
        onnx_nodes=(),
        estimated_us=us,
        in_place_us=last_us,
    )


def candidate(name: str, nodes: tuple[int, ...], bound: float | None) -> CandidateRecord:
    return CandidateRecord(
        id=name,
        instance=ToolchainInstance(toolchain="tvm"),
        nodes=nodes,
        label="x",
        lower_bound_us=bound,
    )


def test_what_is_left_is_the_time_above_the_least_certified_bound() -> None:
    placement = Placement(
        partitions=(part("p0", (0,), 100.0, 90.0), part("p1", (1, 2), 50.0), part("p2", (3,), 5.0)),
        estimated_us=155.0,
    )
    bounds = [candidate("a", (0,), 40.0), candidate("b", (0,), 30.0), candidate("c", (1, 2), 60.0)]
    first, second, third = partition_roofs(placement, bounds)
    assert first.us == 90.0, "the last run rather than the expectation"
    assert first.bound_us == 30.0 and first.left_us == 60.0 and first.efficiency == 30.0 / 90.0
    assert second.left_us == 0.0 and second.efficiency == 1.0, "costs scatter below the bound"
    assert third.bound_us is None and third.left_us is None and third.efficiency is None
    told = roofline_sentence([first, second, third])
    assert told.startswith("60.0 µs of 140 µs are above the certified lower bounds")
    assert "half of that is in 1 partition" in told and "1 partition has no bound" in told
    assert roofline_sentence([third]).startswith("No partition has both")


def test_a_candidate_without_a_bound_may_be_faster_than_the_bounds_of_the_others() -> None:
    placement = Placement(partitions=(part("p0", (0,), 61.0),), estimated_us=61.0)
    for order in (slice(None), slice(None, None, -1)):
        candidates = [candidate("openblas", (0,), 121.0), candidate("tvm", (0,), None)][order]
        (roof,) = partition_roofs(placement, candidates)
        assert roof.bound_us is None, "the bound of another toolchain's work was taken for its own"


def network() -> GraphRecord:
    """Two products with weights, an addition that reads the input again."""

    def node(index: int, form: str, shape: tuple[int, ...], inputs=(), name="") -> Node:
        return Node(
            index=index,
            form=form,
            op="matmul" if form == "call" else "",
            inputs=inputs,
            types=(TensorType(shape, "float32"),),
            name=name,
        )

    nodes = (
        node(0, "parameter", (1, 10)),
        node(1, "constant", (10, 20)),
        node(2, "call", (1, 20), (0, 1)),
        node(3, "constant", (20, 10)),
        node(4, "call", (1, 10), (2, 3)),
        node(5, "tuple", (1, 10), (4, 0)),
        node(6, "projection", (1, 10), (5,)),
        node(7, "call", (1, 10), (6, 1)),
    )
    return GraphRecord(nodes=nodes, inputs=(0,), outputs=(7,))


def test_bytes_are_counted_from_the_types_of_values() -> None:
    one, two = part("p0", (0, 1), 1.0), part("p1", (2,), 1.0)
    first, second = partition_memory(network(), Placement(partitions=(one, two), estimated_us=None))
    assert first.weights == 2 * 800 and first.inputs == 40
    assert first.outputs == 40 and first.inside == 80
    assert second.weights == 800, "a weight that two partitions read counts in both"
    assert second.inputs == 80, "the value through the tuple, and the input of the model"
    assert second.outputs == 40 and second.inside == 0


def test_packed_copies_are_measured_or_unknown() -> None:
    one, two = part("p0", (0, 1), 1.0), part("p1", (2,), 1.0)
    parts = partition_memory(network(), Placement(partitions=(one, two), estimated_us=None))
    tvm, onednn = toolchain_memory(parts, None)
    assert (tvm.weights, tvm.stored, tvm.packed) == (1600, None, None)
    use = MemoryUse(seen=MemorySeen(held={"onednn": 4096}), stored={"tvm": 1600, "onednn": 800})
    tvm, onednn = toolchain_memory(parts, use)
    assert (tvm.stored, tvm.packed) == (1600, None), "what was not seen is not known"
    assert (onednn.stored, onednn.packed) == (800, 4096)
