"""NHWC borders with real toolchains: numbers of every operator family, and mixed placements."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
import tvm

from collage_engine.artifact.artifact import write_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.extract import function_of, function_of_candidate
from collage_engine.lowering.reference import TrueValues, original_outputs
from collage_engine.lowering.rewrite import assemble, conversion_name
from collage_engine.lowering.tensors import as_logical, as_stored, from_numpy, to_numpy
from collage_engine.model.formats import channels_last_border
from collage_engine.model.importer import import_model, import_onnx
from collage_engine.records.format import NHWC, PLAIN, stored_type
from collage_engine.records.graph import TensorType, operator_set
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.timing.bench import ModelBench
from collage_engine.timing.child import OpenRequest
from collage_engine.toolchains.registry import get
from collage_engine.toolchains.tvm.lowering import conversion
from tests.support.artifact_cases import sample_of
from tests.support.covers import candidate_on
from tests.support.kernel_checks import verify
from tests.support.toolchain_cases import Net, run, whole

DNN = ToolchainInstance(toolchain="onednn")
TVM = ToolchainInstance(toolchain="tvm")
ORT = ToolchainInstance(toolchain="onnxruntime")
C = 20
"""Channels; no multiple of a vector."""


def conv(net: Net, x: str, out: int, kernel: int = 3, into: int = C, **more) -> str:
    weight = net.randn(out, into // more.get("group", 1), kernel, kernel, scale=0.2)
    pad = kernel // 2
    return net.add("Conv", x, weight, net.randn(out), pads=[pad] * 4, **more)


FAMILIES = {
    "conv": lambda n, x: conv(n, x, 24),
    "conv 1x1": lambda n, x: conv(n, x, 24, kernel=1),
    "conv strided": lambda n, x: conv(n, x, 24, strides=[2, 2]),
    "conv grouped": lambda n, x: conv(n, x, 24, group=4),
    "depthwise": lambda n, x: conv(n, x, C, group=C),
    "conv and residual": lambda n, x: n.add("Relu", n.add("Add", conv(n, x, C), x)),
    "transposed conv": lambda n, x: n.add(
        "ConvTranspose", x, n.randn(C, 12, 2, 2, scale=0.2), strides=[2, 2]
    ),
    "max pool": lambda n, x: n.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2]),
    "average pool": lambda n, x: n.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]),
    "global pool": lambda n, x: n.add("GlobalAveragePool", x),
    "mean over pixels": lambda n, x: n.add("ReduceMean", x, axes=[2, 3], keepdims=0),
    "mean over channels": lambda n, x: n.add("ReduceMean", x, axes=[1], keepdims=1),
    "maximum of rows": lambda n, x: n.add("ReduceMax", x, axes=[3], keepdims=0),
    "elementwise": lambda n, x: n.add("Sigmoid", n.add("Mul", x, x)),
    "per channel": lambda n, x: n.add("Mul", x, n.randn(1, C, 1, 1)),
    "fewer axes": lambda n, x: n.add("Add", n.add("Mul", x, n.randn(C, 1, 1)), n.randn(7)),
    "squeeze and excite": lambda n, x: n.add(
        "Mul", x, n.add("Sigmoid", conv(n, n.add("GlobalAveragePool", x), C, kernel=1))
    ),
    "concat": lambda n, x: n.add("Concat", x, n.add("Tanh", x), axis=1),
    "split": lambda n, x: n.add("Sub", *n.add("Split", x, outputs=2, axis=1)),
    "slice": lambda n, x: n.add("Slice", x, *(n.const(np.int64([v])) for v in (2, 9, 1))),
    "softmax of channels": lambda n, x: n.add("Softmax", x, axis=1),
    "softmax of columns": lambda n, x: n.add("LogSoftmax", x, axis=3),
    "flatten": lambda n, x: n.add("Flatten", x),
    "to tokens": lambda n, x: n.add(
        "Transpose", n.add("Reshape", x, n.const(np.int64([1, C, 49]))), perm=[0, 2, 1]
    ),
    "transpose to NHWC": lambda n, x: n.add("Transpose", x, perm=[0, 2, 3, 1]),
    "transpose otherwise": lambda n, x: n.add("Transpose", x, perm=[0, 1, 3, 2]),
    "resize": lambda n, x: n.add(
        "Resize",
        x,
        None,
        n.const(np.float32([1, 1, 2, 2])),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "prelu": lambda n, x: n.add("PRelu", x, n.randn(C, 1, 1)),
    "norm": lambda n, x: n.add("InstanceNormalization", x, n.randn(C), n.randn(C)),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Family → (bench, operators between a pooling and a ReLU that belong to images)."""
    made = {}

    def make(family: str):
        if family not in made:
            net = Net()
            x = net.add("MaxPool", net.input(1, C, 7, 8), kernel_shape=[1, 2])
            y = FAMILIES[family](net, x)
            model = net.model(net.add("Relu", y))
            folder = tmp_path_factory.mktemp("family")
            onnx.save(model, str(folder / "model.onnx"))
            imported = import_model(folder / "model.onnx")
            TrueValues.record(imported, imported.random_inputs(0), folder / "truth")
            request = OpenRequest(imported.record, str(folder / "truth"))
            made[family] = ModelBench(request)
        return made[family]

    return make


@pytest.mark.parametrize("toolchain", ["onednn", "tvm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_and_gives_images_channels_last(bench, family, toolchain):
    ready = bench(family)
    graph = ready.model.graph
    inner = tuple(range(1, len(graph.operators) - 1))
    instance = ToolchainInstance(toolchain=toolchain)
    for number in inner:
        reason = get(toolchain).supports(graph, number, instance)
        if reason is not None:
            pytest.skip(reason)
    takes, gives = channels_last_border(graph, operator_set(inner))
    assert takes == {0: NHWC}
    candidate = candidate_on(instance, inner, takes, gives)
    prepared = ready.prepare(candidate, lambda: None)  # raises if wrong
    assert prepared.max_rel_error < 1e-5
    prepared.close()


def test_a_chain_of_onednn_has_no_reorders_between_nhwc_borders():
    model = branching()
    graph = model.graph
    nodes = (1, 2, 3)
    takes, gives = channels_last_border(graph, operator_set(nodes))
    function = function_of(model, DNN, nodes, "f", takes=takes, gives=gives)
    steps = get("onednn").inside(get("onednn").compile(function))["steps"]
    assert [s["what"] for s in steps] == ["conv"], steps
    assert steps[0]["takes"] == steps[0]["gives"] == "channels-last"


def branching():
    """pool, then two convolutions with ReLU side by side, their sum, a pool and an output each."""
    net = Net()
    x = net.add("MaxPool", net.input(1, C, 12, 12), kernel_shape=[2, 2], strides=[2, 2])
    left = net.add("Relu", conv(net, x, C))
    right = net.add("Relu", conv(net, x, C, kernel=1))
    total = net.add("Add", left, right)
    pooled = net.add("MaxPool", total, kernel_shape=[2, 2], strides=[2, 2])
    return import_onnx(net.model(pooled, net.add("Sigmoid", right)))


def part(model, instance, operators, nhwc):
    graph = model.graph
    takes, gives = channels_last_border(graph, operator_set(operators))
    return (
        candidate_on(instance, operators, takes, gives)
        if nhwc
        else candidate_on(instance, operators)
    )


def by_op(model):
    """pool | left conv, add, relu | right conv, add, relu | sum | pool | sigmoid."""
    graph = model.graph
    ops = [graph.nodes[i].op for i in graph.operators]
    assert ops[0] == "nn.max_pool2d" and ops.count("nn.conv2d") == 2
    groups: list[list[int]] = []
    for number, op in enumerate(ops):
        before = [ops[k] for k in groups[-1]] if groups else []
        follows = op in ("add", "nn.relu") and "nn.conv2d" in before
        constant = any(graph.values[i].constant for i in graph.nodes[number].inputs)
        if follows and (op == "nn.relu" or constant):
            groups[-1].append(number)
        else:
            groups.append([number])
    assert len(groups) == 6
    return [tuple(g) for g in groups]


MIXES = {
    "all nhwc": [(DNN, True)] * 6,
    "alternating": [(DNN, True), (TVM, False), (DNN, True), (TVM, True), (ORT, False), (TVM, True)],
    "plain between": [
        (TVM, True),
        (ORT, False),
        (ORT, False),
        (DNN, True),
        (TVM, False),
        (DNN, True),
    ],
}


@pytest.mark.parametrize("mix", MIXES)
def test_a_mixed_placement_computes_the_model_and_converts_each_value_once(mix, tmp_path):
    model = branching()
    cover = [
        part(model, instance, group, nhwc)
        for group, (instance, nhwc) in zip(by_op(model), MIXES[mix], strict=True)
    ]
    functions = [function_of_candidate(model, p, f"f{k}") for k, p in enumerate(cover)]
    given = {i: f.gives.get(i, PLAIN) for f in functions for i in f.outputs}
    wanted = {(i, f.takes.get(i, PLAIN)) for f in functions for i in f.inputs if i in given} | {
        (i, PLAIN) for i in model.graph.record.outputs
    }
    expected = {(i, want) for i, want in wanted if given[i] != want}
    text = assemble(model, functions).module()["main"].script(show_meta=False)
    assert text.count("convert_") == len(expected)
    if mix == "all nhwc":
        assert not expected  # what only leaves the model is left plain by its maker
    if mix == "plain between":
        # Two partitions want the pooled image plain: they share one conversion.
        assert len(expected) < sum(
            given.get(i, PLAIN) != f.takes.get(i, PLAIN) for f in functions for i in f.inputs
        )
    built = write_module(build_cover(model, cover), tmp_path / "built")
    assert sorted(tuple(p.takes.items()) for p in built.parts) == sorted(
        tuple(p.takes.items()) for p in cover
    )
    assert not any(k.name.startswith(conversion_name(NHWC, PLAIN)) for k in built.kernels)
    folder = write_artifact(model, tmp_path / "built", tmp_path / "artifact", sample_of(model))
    assert run_artifact(folder)["max_rel_error"] < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("shape", [(1, 64, 28, 28), (2, 3, 17, 9), (1, 24, 7, 7), (3, 40, 1, 5)])
def test_conversions_move_every_element_and_back(shape, dtype):
    kind = TensorType(shape, dtype)
    for source, target in ((PLAIN, NHWC), (NHWC, PLAIN)):
        kernel = conversion(kind, source, target, 1)
        assert verify(kernel.function, kernel.plain) == 0.0
        value = np.arange(kind.elements).reshape(shape).astype(dtype)
        tensors = [
            from_numpy(np.ascontiguousarray(as_stored(value, source)), stored_type(kind, source)),
            from_numpy(np.zeros(stored_type(kind, target).shape, dtype), stored_type(kind, target)),
        ]
        module = tvm.IRModule({"f": kernel.function.with_attr("global_symbol", "f")})
        tvm.tirx.build(module, tvm.target.Target("llvm"))["f"](*tensors)
        np.testing.assert_array_equal(as_logical(to_numpy(tensors[1], kind), target), value)


def test_programs_share_working_memory_and_outlive_the_thread_that_ran_them_first():
    """A small and a large oneDNN program, by turns and from threads that end."""
    programs = []
    for size in (8, 40):
        net = Net(seed=size)
        x = net.input(1, C, size, size)
        for _ in range(3):
            x = net.add("Relu", conv(net, x, C))
        model = import_onnx(net.model(x))
        feeds = model.random_inputs(0)
        truth = original_outputs(model, feeds)
        function = whole(model, DNN)
        programs.append((get("onednn").compile(function), function, feeds, truth))

    def check(order):
        for k in order:
            module, function, feeds, truth = programs[k]
            (result,) = run(module, function, feeds)
            np.testing.assert_allclose(result, *truth.values(), rtol=1e-4, atol=1e-5)

    for order in ((0, 1, 0), (1, 0), (0, 1)):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(check, order).result()
        check(order[::-1])
