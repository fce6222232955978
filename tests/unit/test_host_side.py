"""A run on a device with partitions on its host: what is offered there, what copies cost, where
the search puts things and why."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from collage_engine.candidates.host_candidates import (
    host_sources,
    on_host,
)
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import make_candidate
from collage_engine.partition.rules import CandidateSource
from collage_engine.planning.search_inputs import (
    broken_pins,
    pin_verdicts,
    problem_candidate,
    problem_pin,
)
from collage_engine.records.candidate import CandidateRecord, Cost, CostTable
from collage_engine.records.format import (
    HOST,
    PLAIN,
    TO_DEVICE,
    TO_HOST,
    byte_constant,
    call_constant,
)
from collage_engine.records.pin import Pin
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import Target, ToolchainInstance
from tests.support.candidates import inputs_of, row
from tests.support.covers import candidate_on
from tests.support.graphs import GraphBuilder, chain

GPU = ToolchainInstance(toolchain="tvm", device="cuda:0", architecture="sm_90a")
CPU = on_host(ToolchainInstance(toolchain="tvm"))
SETTINGS = RunSettings(target="cuda")


def costs(call_us: float, byte_us: float = 0.0) -> dict[str, float]:
    found = {}
    for way in (TO_HOST, TO_DEVICE):
        found |= {call_constant(way): call_us, byte_constant(way): byte_us}
    return found


def source(instance: ToolchainInstance, *refused: int, host: bool = False) -> CandidateSource:
    def supports(index: int) -> str | None:
        return "no such kernel" if index in refused else None

    return CandidateSource(instance, None, supports, device=instance.device, host=host)


def record(
    graph: DataflowGraph, instance: ToolchainInstance, nodes: tuple[int, ...], us: float
) -> CandidateRecord:
    borders = source(instance, host=not instance.architecture).borders(graph, nodes)
    ((takes, gives),) = borders
    made = make_candidate(graph, instance, nodes, rule="operator", takes=takes, gives=gives)
    cost = Cost(state="measured", median_us=us, low_us=us, high_us=us)
    return row(made, cost)


def placed(
    graph: DataflowGraph,
    records: list[CandidateRecord],
    constants: dict[str, float],
    *pins: Pin,
) -> Any:
    inputs = inputs_of(graph, records, pins, SETTINGS).with_constants(constants)
    found = inputs.search()
    return inputs.placement(found.covers[0]) if found.covers else None, found.answer


def three(middle_on_device: bool = True) -> tuple[DataflowGraph, list[CandidateRecord]]:
    """Three operators; the middle one takes 5 µs on the device, if it is there, and 1 on the
    host, the others the other way round."""
    graph = chain("abs", "exp", "tanh")
    records = [record(graph, GPU, (n,), 5.0 if n == 1 else 1.0) for n in range(3)]
    records += [record(graph, CPU, (n,), 1.0 if n == 1 else 5.0) for n in range(3)]
    return graph, records if middle_on_device else [
        r for r in records if r.nodes != (1,) or r.instance is CPU
    ]


def test_cheap_copies_send_a_partition_to_the_host_and_dear_ones_do_not() -> None:
    graph, records = three()
    placement, answer = placed(graph, records, costs(1.0))
    assert [p.device for p in placement.partitions] == ["cuda:0", "cpu", "cuda:0"]
    assert answer.cost_us == pytest.approx(1 + 1 + 1 + 2 * 1.0)
    assert [(c.node, c.source, c.target, c.us) for c in placement.conversions] == [
        (0, PLAIN, HOST, 1.0),
        (1, HOST, PLAIN, 1.0),
    ]
    placement, answer = placed(graph, records, costs(2.5))
    assert {p.device for p in placement.partitions} == {"cuda:0"} and not placement.conversions
    assert answer.cost_us == pytest.approx(7.0)


def test_what_only_the_host_takes_is_there_whatever_copies_cost() -> None:
    graph, records = three(middle_on_device=False)
    placement, answer = placed(graph, records, costs(50.0))
    assert [p.device for p in placement.partitions] == ["cuda:0", "cpu", "cuda:0"]
    assert answer.cost_us == pytest.approx(103.0)
    unknown, answer = placed(graph, records, {})
    assert unknown is None and answer.infeasible  # a copy whose cost is not known cannot be chosen


def test_the_models_inputs_are_copied_too_and_its_outputs_back() -> None:
    graph, records = three()
    placement, answer = placed(
        graph, records, costs(0.25), Pin(kind="device", nodes=(0, 1, 2), device="cpu")
    )
    assert {p.device for p in placement.partitions} == {"cpu"}
    assert answer.cost_us == pytest.approx(11 + 2 * 0.25)


@pytest.mark.parametrize(("device", "price"), [("cpu", 4.0 + 2.0), ("cuda:0", 0.0)])
def test_device_pins_are_honoured_at_a_price(device: str, price: float) -> None:
    graph, records = three()
    pin = Pin(kind="device", nodes=(0,), device=device)
    placement, answer = placed(graph, records, costs(2.0), pin)
    first = placement.partitions[0]
    assert first.device == device
    (verdict,) = pin_verdicts([pin], answer)
    assert verdict.state == "honoured" and verdict.price_us is not None
    # On the host the first operator draws the second along: one copy there, one back.
    assert verdict.price_us == pytest.approx(price if device == "cuda:0" else 5 + 1 + 2 + 2 + 1 - 7)
    _, answer = placed(graph, records, costs(2.0), Pin(kind="device", nodes=(0,), device="cuda:1"))
    assert answer.infeasible is not None


def test_a_baseline_elsewhere_breaks_a_device_pin() -> None:
    cover = (candidate_on(GPU, (0,)), candidate_on(CPU, (1,)))
    for node, device, broken in ((0, "cuda:0", False), (0, "cpu", True), (1, "cpu", False)):
        pin = problem_pin(Pin(kind="device", nodes=(node,), device=device))
        parts = [problem_candidate(part, CostTable()) for part in cover]
        assert bool(broken_pins([pin], parts)) is broken


class Stub:
    """Stands in for a toolchain of the host."""

    name = "tvm"

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        return (ToolchainInstance(toolchain="tvm", threads=target.threads),)


def test_the_host_is_offered_what_the_device_refuses_and_what_is_pinned() -> None:
    b = GraphBuilder((1, 64, 64, 64))
    x = b.call("exp", b.parameter())
    y = b.call("tanh", x)
    z = b.call("nn.max_pool2d", y)
    graph = b.build(b.call("sum", b.call("abs", z, shape=(4, 4)), shape=()))
    device = source(GPU, y)

    def make(_: Any, instance: ToolchainInstance) -> CandidateSource:
        return source(instance)

    (host,) = host_sources(graph, [Stub()], 2, [device], (2,), make)  # type: ignore[list-item]
    assert host.host and host.device == "cpu" and host.instance.threads == 2
    assert not host.whole_model
    taken = [n for n, index in enumerate(graph.operators) if host.supports(index) is None]
    assert taken == [1, 2], "refused by the device, and pinned"
    whole = msgspec.structs.replace(
        graph.record,
        nodes=tuple(
            msgspec.structs.replace(node, onnx_node=0) if node.index in (x, y) else node
            for node in graph.nodes
        ),
    )
    (host,) = host_sources(DataflowGraph(whole), [Stub()], 2, [device], (), make)  # type: ignore[list-item]
    assert host.supports(x) is None, "its ONNX node holds an operator that the device refuses"
    assert not host_sources(chain("exp"), [Stub()], 1, [source(GPU)], (), make)  # type: ignore[list-item]
