"""What layers take: calls of the virtual machine, and what runtimes say of their partitions."""

import json

import msgspec
import pytest

from collage_engine.lowering.built import BuiltModule, Kernel
from collage_engine.lowering.stopwatch import KernelTime
from collage_engine.machine.device import least_disturbed
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import CandidateRecord, Cost
from collage_engine.records.placement import Baseline, LayerTime, Placement
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.trials.layer_times import OWN_WORK, layer_times
from collage_engine.trials.trial_job import PlacementProfile
from collage_engine.wording.layers import by_layer, folded, layer_of, left_to_win, outside_us, spans
from tests.support.graphs import chain
from tests.support.runs import partition, run_record

DIGEST = "0123456789abcdef"


def named_chain():
    """Four operators, each an ONNX node of its name."""
    record = chain("a", "b", "c", "d").record
    nodes = [msgspec.structs.replace(each, onnx_nodes=(each.op,)) for each in record.nodes]
    return DataflowGraph(msgspec.structs.replace(record, nodes=tuple(nodes)))


def built(graph):
    """TVM runs operators 0 and 1 in a kernel each, oneDNN the others in one call."""
    tvm, onednn = (ToolchainInstance(toolchain=name, threads=1) for name in ("tvm", "onednn"))
    return BuiltModule(
        parts=(
            make_candidate(graph, tvm, (0, 1), rule="test"),
            make_candidate(graph, onednn, (2, 3), rule="test"),
        ),
        kernels=(
            Kernel(name=f"conv_{DIGEST}", part=0, operators=(0,)),
            Kernel(name=f"relu_{DIGEST}", part=0, operators=(1,)),
            Kernel(name="p1_onednn", part=1),
        ),
        libraries=(),
        environment={},
        threads=1,
        spin=False,
    )


CALLS = (
    KernelTime(kernel="vm.builtin.alloc_storage", us=1.0, gap_us=0.5),
    KernelTime(kernel=f"conv_{DIGEST}", us=10.0, gap_us=0.5),
    KernelTime(kernel=f"relu_{DIGEST}", us=4.0),
    KernelTime(kernel="to_nhwc", us=2.0, gap_us=1.0),
    KernelTime(kernel="p1_onednn", us=20.0),
)


def said(graph, *us):
    """What oneDNN's module says of two primitives in three runs, one of them interrupted."""
    nodes = [[2], [3]]
    steps = [
        {"what": f"s{k}", "implementation": f"jit{k}", "source": k, "us": [each, 900.0, each]}
        for k, each in enumerate(us)
    ]
    plan = json.dumps({"steps": [{"nodes": each} for each in nodes]})
    return json.dumps({"symbol": "p1_onednn", "plan": plan, "steps": steps})


def inside(*answers: str, us: float = 25.0) -> PlacementProfile:
    """What the process of the layers gave, in which oneDNN's call took so long."""
    calls = (KernelTime(kernel="p1_onednn", us=us),)
    return PlacementProfile(calls=calls, inside=answers)


def test_what_was_interrupted_does_not_count():
    runs = [[10.0, 900.0 if number % 6 else 20.0] for number in range(60)]
    assert least_disturbed(runs) == [[10.0, 20.0]] * 10
    assert least_disturbed(runs[:3]) == [[10.0, 20.0], [10.0, 900.0], [10.0, 900.0]]


def test_layers_of_a_moment_in_which_the_machine_was_faster_are_scaled():
    graph = named_chain()
    answers = inside(said(graph, 4.0, 3.0), us=10.0)
    layers = layer_times(graph, built(graph), CALLS, answers, 100.0)
    assert [one.us for one in layers][3:] == pytest.approx([8.0, 6.0, 6.0])


def test_layers_have_their_own_times_and_add_up_to_the_whole_run():
    graph = named_chain()
    layers = layer_times(graph, built(graph), CALLS, inside(said(graph, 12.0, 5.0)), 42.0)
    assert [(one.name, one.partition, one.operators) for one in layers] == [
        ("conv", 0, (0,)),
        ("relu", 0, (1,)),
        ("to_nhwc", None, ()),
        ("jit0", 1, (2,)),
        ("jit1", 1, (3,)),
        (OWN_WORK, 1, ()),
    ]
    assert [one.us for one in layers] == [10.0, 4.0, 2.0, 12.0, 5.0, 3.0]
    # 3 µs passed between calls or in bookkeeping; the run took 6 µs besides its layers.
    assert [one.gap_us for one in layers] == pytest.approx([4.0, 0.0, 2.0, 0.0, 0.0, 0.0])
    assert sum(one.us + one.gap_us for one in layers) == pytest.approx(42.0)


def test_a_profile_that_took_longer_than_the_run_counts_with_its_shares():
    graph = named_chain()
    layers = layer_times(graph, built(graph), CALLS, inside(said(graph, 30.0, 10.0)), 18.0)
    assert sum(one.us + one.gap_us for one in layers) == pytest.approx(18.0)
    assert [one.us for one in layers] == pytest.approx([5.0, 2.0, 1.0, 7.5, 2.5])


def test_what_a_runtime_says_nothing_of_is_one_layer():
    graph = named_chain()
    layers = layer_times(graph, built(graph), CALLS, inside(), 100.0)
    assert [(one.name, one.us, one.operators) for one in layers][-1] == ("p1_onednn", 20.0, (2, 3))


def placement(*layers: LayerTime) -> Placement:
    """A measured placement of two partitions, TVM's of operators 0 and 1, and oneDNN's."""
    parts = tuple(
        partition(*part.nodes, id=f"p{k}", toolchain=part.instance.toolchain)
        for k, part in enumerate(built(named_chain()).parts)
    )
    return Placement(partitions=parts, estimated_us=None, measured_us=42.0, layers=layers)


def profiled() -> Placement:
    graph = named_chain()
    return placement(*layer_times(graph, built(graph), CALLS, inside(said(graph, 12.0, 5.0)), 42.0))


def test_spans_lie_one_after_the_other_and_end_with_the_run():
    found = spans(profiled())
    assert [(one.begin_us, one.end_us) for one in found[:3]] == [(4, 14), (14, 18), (20, 22)]
    assert found[-1].end_us == pytest.approx(42.0)


def test_a_placement_by_layer_and_what_is_outside_of_its_layers_add_up():
    shown = profiled()
    layered = by_layer(shown)
    assert [(part.toolchain, part.nodes) for part in layered.partitions] == [
        ("tvm", (0,)),
        ("tvm", (1,)),
        ("onednn", (2,)),
        ("onednn", (3,)),
    ]
    assert sum(part.in_place_us for part in layered.partitions) + outside_us(layered) == 42.0
    assert by_layer(placement()) == placement(), "a placement without layers stays as it is"


def test_layers_that_compute_parts_of_one_node_are_one():
    timed = [((0,), 1.0), ((1, 0), 2.0), ((2,), 4.0), ((2, 3), 8.0)]
    layers = [
        LayerTime(name=str(us), us=us, partition=int(us > 3), operators=held) for held, us in timed
    ]
    layered = by_layer(placement(*layers))
    assert [(part.nodes, part.in_place_us) for part in layered.partitions] == [
        ((0, 1), 3.0),
        ((2, 3), 12.0),
    ]
    assert layer_of(placement(*layers), 3).nodes == (2, 3)


def test_equal_blocks_are_one_layer_with_their_sum_wherever_their_partitions_begin():
    layers = [
        LayerTime(name="a", us=3.0, gap_us=1.0, partition=0, operators=(0,)),
        LayerTime(name="own work", us=1.0, partition=0),
        LayerTime(name="to_nhwc", us=2.0),
        LayerTime(name="b", us=6.0, partition=0, operators=(1,)),
        LayerTime(name="c", us=4.0, gap_us=1.0, partition=1, operators=(2, 3)),
    ]
    timed = placement(*layers)
    one = folded(timed, [[(0,), (1,)]])
    assert [(layer.us, layer.blocks) for layer in one.layers] == [(9, 2), (1, 1), (2, 1), (4, 1)]
    assert one.layers[0].name == "2 equal blocks, 3.00 µs to 6.00 µs each"
    assert spans(one)[-1].end_us == spans(timed)[-1].end_us
    blocks = [msgspec.structs.replace(part, toolchain="tvm") for part in timed.partitions]
    alike = msgspec.structs.replace(timed, partitions=tuple(blocks))
    one = folded(alike, [[(0, 1), (2, 3)]])
    assert [(layer.us, layer.gap_us) for layer in one.layers] == [(14, 2), (2, 0)]


def test_what_costs_most_is_listed_with_what_others_are_known_to_take():
    def candidate(toolchain: str, us: float | None, *nodes: int) -> CandidateRecord:
        return CandidateRecord(
            id=f"{toolchain}{nodes}{us}",
            instance=ToolchainInstance(toolchain=toolchain, threads=1),
            nodes=nodes,
            label="",
            key="",
            cost=Cost(state="unknown") if us is None else Cost(state="measured", median_us=us),
        )

    known = [
        candidate("openvino", 9.0, 2),
        candidate("onnxruntime", 8.0, 2),
        candidate("onednn", 1.0, 2),
        candidate("openvino", 15.0, 0),
        candidate("openvino", None, 3),
        candidate("openvino", 1.0, 0, 1),
    ]
    parts = left_to_win(profiled(), {each.id: each for each in known}, None, 4)
    found = [(one.layer.nodes, one.us, one.won_us) for one in parts]
    assert found == [((2,), 12.0, 4.0), ((0,), 10.0, 0.0), ((3,), 5.0, None), ((1,), 4.0, None)]


def test_a_layer_that_took_nothing_in_whole_microseconds_promises_no_gain():
    timed = [
        LayerTime(name=str(k), us=us, partition=0, operators=(k,))
        for k, us in enumerate((3.0, 0.0, 0.0, 4.0))
    ]
    whole = CandidateRecord(
        id="whole", instance=ToolchainInstance(toolchain="openvino"), nodes=(0, 1, 2, 3), label=""
    )
    alone = Baseline(
        name="openvino",
        kind="whole-model",
        measured_us=42.0,
        candidates=(whole.id,),
        layers=tuple(timed),
    )
    run = run_record(placement=profiled(), baselines=[alone])
    parts = left_to_win(profiled(), {whole.id: whole}, run, 4)
    won = {one.layer.nodes: one.won_us for one in parts}
    assert won == {(0,): 7.0, (3,): 1.0, (1,): None, (2,): None}
