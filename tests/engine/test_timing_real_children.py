"""Measuring a real model in real children: toolchains that misbehave, and profiles."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from threading import Event

import numpy as np
import onnx
import pytest

from collage_engine.lowering.reference import TrueValues, original_outputs
from collage_engine.model.importer import import_model
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.store import Store
from collage_engine.timing.child import OpenRequest, measuring_environment
from collage_engine.timing.measurer import MeasureCall, Measurer, group_candidates
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.layer_times import layer_times, wants_layers
from collage_engine.trials.objective import TrialSettings
from collage_engine.trials.placement_process import TrialBench, early_builder
from collage_engine.trials.trial_job import PlacementProfile
from tests.support.artifact_cases import MNIST, cover_in_turn
from tests.support.written import written


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    """conv, relu, mean; then a matrix product and an argmax."""
    random = np.random.default_rng(0)
    shapes = {"w": (4, 3, 3, 3), "m": (4, 5)}
    model = written(
        """(float[1,3,8,8] x) => (float[1,5] y, int64[1,1] k) {
            [conv1] c = Conv<pads=[1, 1, 1, 1]>(x, w)
            [relu1] r = Relu(c)
            [mean1] g = ReduceMean<axes=[2, 3], keepdims=0>(r)
            [fc] y = MatMul(g, m)
            [best] k = ArgMax<axis=1>(y)
        }""",
        {n: random.standard_normal(s).astype("float32") for n, s in shapes.items()},
        opset=13,
    )
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
        closing(
            Measurer(
                OpenRequest(import_model(model_file).record, str(truth)),
                store=store,
                env=measuring_environment(["onnxruntime"], 1),
                candidate_limit_s=20,
                job="tests.support.measure_real_targets:Job",
            )
        ) as made,
    ):
        yield made


def candidate(name: str, *nodes: int) -> CandidateRecord:
    instance = ToolchainInstance(toolchain=name, threads=1)
    return CandidateRecord(
        id=f"{name}:{nodes}", instance=instance, nodes=nodes, label=name, key=f"{name}{nodes}"
    )


def test_liars_crashers_and_the_picky_are_found_out_and_cost_nobody_else(measurer):
    names = ("plain", "liar", "crasher", "picky", "onnxruntime")
    candidates = [candidate(name, 0, 1) for name in names]
    found = MeasureCall(measurer, group_candidates(candidates))
    found.run()
    states = {one.instance.toolchain: found.costs[one.key] for one in candidates}
    assert states["plain"].usable and states["onnxruntime"].usable
    assert states["liar"].reason.startswith("wrong numbers in the output of relu1: relative error")
    assert states["crasher"].reason.startswith("crashed while compiling: killed by SIGSEGV")
    assert states["picky"].reason == "picky takes nothing on Saturdays"


def test_what_opened_the_model_early_builds_it(tmp_path):
    model = import_model(MNIST)
    inputs = model.random_inputs(0)
    sample = Sample(inputs, original_outputs(model, inputs))
    with (
        early_builder(model.record, Event()) as builder,
        TrialBench(model, [sample], 1e-4, tmp_path, builder=builder) as bench,
    ):
        process = bench.process(Contender(cover=tuple(cover_in_turn(model, ["onednn"]))))
        assert process.build() and process.failure is None
        assert builder.generation == 1 and builder.alive, "it is the process that opened it"
    assert not builder.alive


def test_a_profile_leaves_nothing_behind_in_the_process(tmp_path):
    """What watches the kernels in a profile would slow down every later round."""
    model = import_model(MNIST)
    inputs = model.random_inputs(0)
    sample = Sample(inputs, original_outputs(model, inputs))
    cut = tuple(cover_in_turn(model, ["onednn"] * (len(model.graph.operators) // 2)))
    settings = TrialSettings(round_s=0.005)
    with TrialBench(model, [sample], 1e-4, tmp_path, settings=settings) as bench:
        process = bench.process(Contender(name="cut", kind="collage", cover=cut))
        process.build()
        process.load()
        before = min(process.timed_round())
        assert any(process.partition_times(5)[0])
        rounds = (min(process.timed_round()) for _ in range(20))
        assert any(after < 1.5 * before for after in rounds), "none of twenty is as fast"


@pytest.mark.parametrize("name", ["tvm", "onednn", "onnxruntime", "openvino"])
def test_a_placement_of_one_partition_shows_the_layers_inside(tmp_path, name):
    model = import_model(MNIST)
    inputs = model.random_inputs(0)
    sample = Sample(inputs, original_outputs(model, inputs))
    whole = make_candidate(
        model.graph,
        ToolchainInstance(toolchain=name, threads=1),
        tuple(range(len(model.graph.operators))),
        rule="test",
    )
    with TrialBench(model, [sample], 1e-4, tmp_path) as bench:
        process = bench.process(Contender(name="whole", kind="collage", cover=(whole,)))
        process.build()
        process.load()
        calls = process.profile(9).calls
        assert wants_layers(process.built) == (name != "tvm"), "TVM's kernels are calls themselves"
        inside = process.layers_inside(9) if name != "tvm" else PlacementProfile()
        layers = layer_times(model.graph, process.built, calls, inside, 1000.0)
    computed = [one for one in layers if one.operators]
    assert len(computed) > 4 and sum(one.us for one in computed) > 0.0
    held = [k for one in computed for k in one.operators]
    assert sorted(held) == list(range(11)), "each operator is in one of the layers"
    assert sum(one.us + one.gap_us for one in layers) == pytest.approx(1000.0)
