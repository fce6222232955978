"""What layers take: calls of the virtual machine, and what runtimes say of their partitions."""

import json

import msgspec
import pytest

from collage_engine.lowering.built import BuiltModule, Kernel
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.trials.layer_times import OWN_WORK, layer_times
from collage_engine.trials.trial_job import KernelTime
from tests.support.graphs import chain

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
    nodes = [[graph.operators[k]] for k in (2, 3)]
    steps = [
        {"what": f"s{k}", "kernel": f"jit{k}", "source": k, "us": [each, 900.0, each]}
        for k, each in enumerate(us)
    ]
    plan = json.dumps({"steps": [{"nodes": each} for each in nodes]})
    return json.dumps({"symbol": "p1_onednn", "plan": plan, "steps": steps})


def test_layers_have_their_own_times_and_add_up_to_the_whole_run():
    graph = named_chain()
    layers = layer_times(graph, built(graph), CALLS, [said(graph, 12.0, 5.0)], 42.0)
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
    layers = layer_times(graph, built(graph), CALLS, [said(graph, 30.0, 10.0)], 18.0)
    assert sum(one.us + one.gap_us for one in layers) == pytest.approx(18.0)
    assert [one.us for one in layers] == pytest.approx([5.0, 2.0, 1.0, 7.5, 2.5])


def test_what_a_runtime_says_nothing_of_is_one_layer():
    graph = named_chain()
    layers = layer_times(graph, built(graph), CALLS, [], 100.0)
    assert [(one.name, one.us, one.operators) for one in layers][-1] == ("p1_onednn", 20.0, (2, 3))
