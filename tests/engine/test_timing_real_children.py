"""Measuring candidates of a real model: truth, numbers, times, and toolchains that misbehave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage_engine.lowering.reference import TrueValues
from collage_engine.model.importer import import_model
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.store import Store
from collage_engine.timing.child import measuring_environment
from collage_engine.timing.measurer import Measurer, group_candidates
from collage_engine.timing.protocol import ProtocolSettings

QUICK = ProtocolSettings(budget_s=0.01)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    """conv, relu, mean; then a matrix product and an argmax."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((4, 3, 3, 3)).astype("float32"),
        "m": random.standard_normal((4, 5)).astype("float32"),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv1", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"], "relu1"),
            helper.make_node("ReduceMean", ["r"], ["g"], "mean1", axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["g", "m"], ["y"], "fc"),
            helper.make_node("ArgMax", ["y"], ["k"], "best", axis=1),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5]),
            helper.make_tensor_value_info("k", TensorProto.INT64, [1, 1]),
        ],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(model, str(path))
    return path


@pytest.fixture(scope="module")
def truth(model_file, tmp_path_factory) -> Path:
    model = import_model(model_file)
    folder = tmp_path_factory.mktemp("truth")
    TrueValues.record(model, model.random_inputs(0), folder)
    return folder


@pytest.fixture
def measurer(model_file, truth, tmp_path):
    with (
        Store(tmp_path / "m.db") as store,
        Measurer(
            model_file,
            None,
            truth,
            store=store,
            env=measuring_environment(["onnxruntime"], 1),
            settings=QUICK,
            candidate_limit_s=20,
            job="tests.support.measure_real_targets:Job",
        ) as made,
    ):
        yield made


def candidate(name: str, *nodes: int) -> CandidateRecord:
    instance = ToolchainInstance(toolchain=name, threads=1)
    return CandidateRecord(
        id=f"{name}:{nodes}", instance=instance, nodes=nodes, label=name, key=f"{name}{nodes}"
    )


def test_real_toolchains_are_right_and_timed(measurer, model_file):
    count = import_model(model_file).record.nodes
    sets = [(0,), (0, 1), tuple(range(count))]
    candidates = [candidate(name, *nodes) for nodes in sets for name in ("plain", "onnxruntime")]
    found = measurer.measure(group_candidates(candidates))
    for one in candidates:
        cost = found.costs[one.key]
        assert cost.state == "measured", f"{one.id}: {cost.reason}"
        assert 0 < cost.low_us <= cost.median_us <= cost.high_us < 1e5
        assert cost.max_rel_error < 1e-4 and cost.count >= 3


def test_liars_crashers_and_the_picky_are_found_out_and_cost_nobody_else(measurer):
    names = ("plain", "liar", "crasher", "picky", "onnxruntime")
    candidates = [candidate(name, 0, 1) for name in names]
    found = measurer.measure(group_candidates(candidates))
    states = {one.instance.toolchain: found.costs[one.key] for one in candidates}
    assert states["plain"].usable and states["onnxruntime"].usable
    assert states["liar"].reason.startswith("wrong numbers in the output of relu1: relative error")
    assert states["crasher"].reason.startswith("crashed while compiling: killed by SIGSEGV")
    assert states["picky"].reason == "picky takes nothing on Saturdays"


def test_a_sleeper_is_killed(measurer):
    measurer.child.candidate_limit_s = 3.0
    asleep, plain = candidate("sleeper", 1), candidate("plain", 1)
    found = measurer.measure(group_candidates([plain, asleep]))
    assert found.costs[asleep.key].reason == "gave no answer within 3 s while compiling"
    assert found.costs[plain.key].usable
