"""Library calls among TVM's kernels: which groups are offered, and what is built of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from collage_engine.artifact.artifact import write_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.candidates.open_model import OpenModel
from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.compile import compile_function
from collage_engine.model.importer import ImportedModel, import_model
from collage_engine.partition.enumerate import CandidateSource, enumerate_candidates
from collage_engine.records.candidate import Candidate, CandidateRecord
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.capabilities import composites_of
from collage_engine.toolchains.registry import get
from tests.support.artifact_cases import sample_of
from tests.support.bare_python import run_bare
from tests.support.covers import candidate_on
from tests.support.toolchain_cases import Net, error, imported, name_of, reference, whole

LIBRARY = "openblas"


def gated() -> ModelProto:
    """A convolution whose gate and residual no library computes in the same call, and a head."""
    net = Net()
    x = net.input(1, 8, 14, 14)
    y = net.add("Conv", x, net.randn(16, 8, 1, 1, scale=0.2), net.randn(16))
    y = net.add("Mul", net.add("Sigmoid", y), net.input(1, 16, 14, 14))
    y = net.add("Relu", net.add("Add", y, net.input(1, 16, 14, 14)))
    y = net.add("MaxPool", y, kernel_shape=[14, 14])
    y = net.add("MatMul", net.add("Flatten", y), net.randn(16, 10))
    return net.model(net.add("Softmax", y))


def offered(model: ImportedModel) -> tuple[CandidateRecord, ...]:
    tvm, graph = get("tvm"), model.graph
    (instance,) = tvm.library_instances(1, [LIBRARY])
    source = CandidateSource(
        instance=instance,
        spec=tvm.partition_spec(instance, graph),
        supports=lambda index: tvm.supports(graph, index, instance),
        whole_model=False,
        lowers_to_tir=True,
        made_of=lambda nodes: composites_of(tvm, graph, instance, nodes),
    )
    return enumerate_candidates(graph, [source])


def test_groups_hold_a_composite_and_something_beside() -> None:
    model = imported(gated())
    names = [model.graph.nodes[i].op for i in model.graph.operators]
    found = offered(model)
    assert found
    for candidate in found:
        assert candidate.instance.id == f"tvm[library={LIBRARY}]"
        called = {n for _, nodes in candidate.composites for n in nodes}
        assert called and called < set(candidate.nodes)
    largest = max(found, key=lambda c: len(c.nodes))
    fused = ["nn.conv2d", "add", "sigmoid", "multiply", "add", "nn.relu"]
    assert [names[n] for n in largest.nodes] == fused
    ((name, nodes),) = largest.composites
    assert name == f"{LIBRARY}.product"
    assert [names[n] for n in nodes] == ["nn.conv2d"]
    assert largest.rule.startswith("tvm.combine")


def test_what_a_library_does_alone_is_not_offered_again() -> None:
    net = Net()
    product = net.model(net.add("MatMul", net.input(6, 16), net.randn(16, 16)))
    assert offered(imported(product)) == ()


def test_a_composite_read_twice_stays_whole_or_is_not_taken() -> None:
    """The inner value of a composite leaves the group: only what ends there is one call."""
    net = Net()
    a = net.add("MatMul", net.input(6, 16), net.randn(16, 16))
    b = net.add("Add", a, net.randn(16))
    y = net.add("Mul", net.add("Relu", b), b)
    net_model = net.model(y)
    model = imported(net_model)
    for candidate in offered(model):
        for _, nodes in candidate.composites:
            ops = [model.graph.nodes[n].op for n in nodes]
            assert "nn.relu" not in ops
    function = whole(model, get("tvm").library_instances(1, [LIBRARY])[0])
    feeds = model.random_inputs(0)
    given = [feeds[name_of(model.graph, i)] for i in function.inputs]
    with compile_function(function) as compiled:
        (result,) = compiled.run(given)
    assert error(result, reference(net_model, function, feeds)[0]) < 1e-5


def test_a_group_is_a_call_with_kernels_around_it() -> None:
    model = imported(gated())
    candidate = max(offered(model), key=lambda c: len(c.nodes))
    from collage_engine.lowering.extract import function_of

    function = function_of(model, candidate.instance, candidate.nodes, "group")
    values = model.graph.values
    random = np.random.default_rng(0)
    given = [
        random.standard_normal(values[i].type.shape).astype(np.float32) for i in function.inputs
    ]
    plain = function_of(model, ToolchainInstance(toolchain="tvm"), candidate.nodes, "plain")
    with compile_function(function) as mixed, compile_function(plain) as alone:
        assert error(mixed.run(given)[0], alone.run(given)[0]) < 1e-5
        assert mixed.timer(given)(3) > 0
        inside = mixed.inside()
        # One kernel for all that follows: nothing is copied between it and the library.
        assert len(inside["kernels"]) == 1
        (call,) = inside["library_calls"]
        assert call["what"] == "sgemm"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ImportedModel:
    path = tmp_path_factory.mktemp("model") / "gated.onnx"
    onnx.save(gated(), path)
    return import_model(path)


def mixed_cover(model: ImportedModel) -> list[Candidate]:
    """The gated group on TVM with the library, the rest on TVM alone but for its last two."""
    group = max(offered(model), key=lambda c: len(c.nodes))
    rest = [n for n in range(len(model.graph.operators)) if n not in group.nodes]
    return [
        candidate_on(group.instance, group.nodes),
        candidate_on(ToolchainInstance(toolchain="tvm"), tuple(rest[:-1])),
        candidate_on(ToolchainInstance(toolchain="onnxruntime"), tuple(rest[-1:])),
    ]


def test_artifact_of_a_mixed_placement_runs_moved_and_bare(
    model: ImportedModel, site: Path, tmp_path: Path
) -> None:
    cover = mixed_cover(model)
    built = build_cover(model, cover)
    assert {lib.toolchain for lib in built.about.libraries} == {LIBRARY, "onnxruntime"}
    about = built.about
    owners = {kernel.name: about.parts[kernel.part].instance.id for kernel in about.kernels}
    called = [name for name in owners if name.endswith(f"_{LIBRARY}0")]
    assert [owners[name] for name in called] == [f"tvm[library={LIBRARY}]"]
    write_module(built, tmp_path / "built")
    artifact = write_artifact(model, tmp_path / "built", tmp_path / "artifact", sample_of(model))
    assert run_artifact(artifact)["max_rel_error"] < 1e-5
    moved = tmp_path / "else where"
    artifact.rename(moved)
    done = run_bare(site, "loader/run_artifact.py", cwd=moved)
    assert done.returncode == 0, done.stderr
    assert "agrees with the sample" in done.stdout


def test_a_run_offers_them_for_the_libraries_it_may_use(model: ImportedModel) -> None:
    workspace = OpenModel(model.record.path, {})
    try:
        both = workspace.catalog(RunSettings(toolchains=("tvm", "openblas"), threads=1))
        assert "tvm[library=openblas]" in both.instances
        kept = [r for r in both.candidates if r.instance.library]
        assert kept and all(r.composites and r.key for r in kept)
        plain = {r.nodes: r.key for r in both.candidates if r.instance.id == "tvm"}
        assert all(plain.get(r.nodes) != r.key for r in kept)
        alone = workspace.catalog(RunSettings(toolchains=("tvm",), threads=1))
        assert list(alone.instances) == ["tvm"]
    finally:
        workspace.close()
