"""ONNX Runtime through its C API: results, settings, and what a call costs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from tests.support.command import python
from tests.support.toolchain_cases import (
    available,
    check_whole,
    default_instance,
    imported,
    whole,
)
from tests.support.toolchain_models import MODELS, small_net
from tests.support.written import written


@pytest.fixture(scope="module")
def toolchain() -> OnnxRuntimeToolchain:
    return available(OnnxRuntimeToolchain())


@pytest.mark.parametrize("name", MODELS)
def test_results(toolchain: OnnxRuntimeToolchain, name: str) -> None:
    check_whole(toolchain, MODELS[name], default_instance(toolchain), 1e-5)


def test_its_instance_has_the_threads_of_the_run(toolchain: OnnxRuntimeToolchain) -> None:
    (instance,) = toolchain.instances(Target(threads=2), "float32")
    assert instance.id == "onnxruntime" and instance.threads == 2


def test_inside_shows_what_the_optimiser_made(toolchain: OnnxRuntimeToolchain) -> None:
    """An optimised session folds the activation into the convolution."""
    net = small_net()
    inside = toolchain.inside(toolchain.compile(whole(imported(net), default_instance(toolchain))))
    operators = [s["what"] for s in inside["steps"]]
    assert "Relu" in [node.op_type for node in net.graph.node] and "Relu" not in operators


BRANCHES = """
<ir_version: 8, opset_import: ["": 16]>
branches (float[1, 4] x, int64 rate) => (float[1, 1, 2] y)
<int64[1] first = {0}, int64 sixteen = {16}, int64 four = {4}, int64 axis = {1}>
{
  positive = Relu(x)
  row = Unsqueeze(positive, first)
  is_sixteen = Equal(rate, sixteen)
  y = If(is_sixteen) <
    then_branch = fits () => (float[1, 1, 2] sums) <float[4, 2] matrix = {1, 2, 3, 4, 5, 6, 7, 8}> {
      sums = MatMul(row, matrix)
    },
    else_branch = does_not_fit () => (float[1, 1, 2] last) {
      sizes = Shape(x)
      size = Gather(sizes, axis)
      is_four = Equal(size, four)
      rows = If(is_four) <
        then_branch = flat () => (float[a] small) { small = Squeeze(x) },
        else_branch = as_it_is () => (float[1, 1, n] large) { large = Unsqueeze(x, first) }
      >
      w_shape = Constant <value_ints = [1, 8, 4]> ()
      w = ConstantOfShape(w_shape)
      r_shape = Constant <value_ints = [1, 8, 2]> ()
      r = ConstantOfShape(r_shape)
      all, last, cell = LSTM <hidden_size = 2> (rows, w, r)
    }
  >
}
"""
"""The branch for other rates than 16 has an LSTM, which takes no row of four."""


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_branch_that_is_not_taken_need_not_fit_the_sizes(
    toolchain: OnnxRuntimeToolchain, is_whole: bool
) -> None:
    model = imported(parser.parse_model(BRANCHES))
    graph, instance = model.graph, default_instance(toolchain)
    operators = graph.operators
    if not is_whole:
        operators = tuple(node.index for node in graph.nodes if node.op == "onnx:If")
    function = function_of(model, instance, operators, "branches")
    x = np.array([[-1, 2, -3, 4]], np.float32)
    known = {"x": x, "rate": np.array(16), "row": np.maximum(x, 0)[None]}
    known["is_sixteen"] = np.array(True)
    makers = [graph.operator_of(i) or graph.values[i] for i in function.inputs]
    with Compiled(function) as compiled:
        (y,) = compiled.run([known[maker.name] for maker in makers])
    assert y.tolist() == [[[2 * 3 + 4 * 7, 2 * 4 + 4 * 8]]]
    assert "sizes of its inputs left open" in function.notes[0]


def test_other_thread_counts_get_their_own_pool() -> None:
    """The first module's settings own the process's pool; other settings still work."""
    script = """
        import os
        from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
        from tests.support.toolchain_models import small_net
        from tests.support.toolchain_cases import default_instance, imported, whole
        toolchain = OnnxRuntimeToolchain()
        net = imported(small_net())
        threads = lambda: len(os.listdir("/proc/self/task"))
        kept, shared, grown = [], [], []
        for count, spin in ((2, False), (2, False), (3, False), (2, True), (1, False)):
            function = whole(net, default_instance(toolchain, count), spin=spin)
            before = threads()
            kept.append(toolchain.compile(function))
            grown.append(threads() - before)
            shared.append(toolchain.inside(kept[-1])["shared_pool"])
        print(shared, grown[1:])
    """
    done = python(script, check=True)
    assert done.stdout.strip().splitlines()[-1] == str(
        ([True, True, False, False, False], [0, 2, 1, 0])
    )[1:-1].replace("], [", "] [")


@pytest.mark.parametrize(
    ("model", "refused"),
    [
        ("(int32[2,4] x) => (y) { y = ReduceSum(x, axis) }", True),
        ("(int32[2,4] x) => (y) { y = ReduceProd<axes=[1]>(x) }", True),
        ("(int32[4] x) => (y) { y = Pow(x, x) }", True),
        ("(int64[2,4] x) => (y) { y = ReduceSum(x, axis) }", True),
        ("(int32[2,4] x) => (y) { y = ReduceMean<axes=[1]>(x) }", False),
        # A mask's count is a float in the end: it is taken to be small.
        ("(int32[2,4] x) => (y) { n = ReduceSum(x, axis) y = Cast<to=1>(n) }", False),
    ],
)
def test_sums_of_whole_numbers_that_saturate_are_refused(toolchain, model, refused):
    graph = imported(written(model, {"axis": np.int64([1])}, opset=17)).graph
    instance = default_instance(toolchain)
    said = [toolchain.supports(graph, i, instance) for i in graph.operators]
    assert any(reason is not None and "float64" in reason for reason in said) == refused
