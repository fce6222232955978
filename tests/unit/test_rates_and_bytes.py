"""Rates of partitions, and what memory they take: counted or measured, never invented."""

from __future__ import annotations

from collage_engine.records.graph import GraphRecord
from collage_engine.records.placement import Placement
from collage_engine.wording.partition_figures import partition_figures
from tests.support.graphs import GraphBuilder
from tests.support.runs import partition


def part(name: str, nodes: tuple[int, ...], us: float | None, last_us: float | None = None):
    toolchain = "tvm" if nodes[0] == 0 else "onednn"
    return partition(*nodes, id=name, toolchain=toolchain, us=us, in_place_us=last_us)


def network() -> GraphRecord:
    """Return two products with weights, and one of two values and a weight."""
    b = GraphBuilder((1, 10))
    x, weight = b.parameter(), b.constant((10, 20))
    first = b.call("matmul", x, weight, shape=(1, 20))
    second = b.call("matmul", first, b.constant((20, 10)))
    return b.build(b.call("concat", second, x, weight)).record


def test_rates_are_by_the_time_of_the_last_run_and_bytes_by_the_types_of_values() -> None:
    placement = Placement(
        partitions=(part("p0", (0, 1), 4.0, 2.0), part("p1", (2,), None)), estimated_us=None
    )
    # Two products: 2·20·10 and 2·10·20 operations; inputs 40, weights 2·800, output 40 bytes.
    first, second = partition_figures(network(), placement)
    assert first.us == 2.0, "the last run rather than the expectation"
    assert (first.operations, first.moved_bytes) == (800.0, 1680)
    assert first.gflops == 0.4 and first.gigabytes_per_s == 0.84
    assert second.gflops is None and second.gigabytes_per_s is None
    assert first.weights == 2 * 800 and first.inputs == 40
    assert first.outputs == 40 and first.inside == 80
    assert second.weights == 800, "a weight that two partitions read counts in both"
    assert second.inputs == 80, "the second product, and the input of the model"
    assert second.outputs == 40 and second.inside == 0
