"""Covers rewritten into one module, run by the VM."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import original_outputs
from collage_engine.lowering.rewrite import assemble, execution_order
from collage_engine.model.importer import import_onnx
from collage_engine.support.errors import ToolchainError
from tests.support.plain_toolchain import PLAIN, register
from tests.support.written import written


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    register(monkeypatch)


def onnx_model(text, **weights):
    model = written(text, weights, opset=17)
    onnx.checker.check_model(model)
    return import_onnx(model)


def branches():
    """x → relu → (exp, tanh) → add → neg; two outputs, one unused input."""
    return onnx_model(
        """(float[3] unused, float[2,4] x) => (float[2,4] e, float[2,4] b) {
            [relu] a = Relu(x)
            [exp] b = Exp(a)
            [tanh] c = Tanh(a)
            [add] d = Add(b, c)
            [neg] e = Neg(d)
        }"""
    )


def functions(model, groups):
    return [
        function_of(model, PLAIN, tuple(group), f"part{number}")
        for number, group in enumerate(groups)
    ]


def run(model, groups, inputs=None):
    """Outputs of the model cut into these partitions; and the module."""
    from tvm import relax
    from tvm.runtime import cpu

    from collage_engine.lowering.tensors import from_numpy, to_numpy
    from collage_engine.lowering.virtual_machine import build_target

    inputs = inputs or model.random_inputs(1)
    made = functions(model, groups)
    parts = [made[position] for position in execution_order(made)]
    assembled = assemble(model, parts)
    vm = relax.VirtualMachine(relax.build(assembled.module(), build_target()), cpu())
    result = vm["main"](*[from_numpy(inputs[n], k) for n, k in model.inputs])
    tensors = [result] if len(model.outputs) == 1 else list(result)
    kinds = [kind for _, kind in model.outputs]
    return list(map(to_numpy, tensors, kinds)), assembled


def check(model, groups):
    inputs = model.random_inputs(1)
    outputs, assembled = run(model, groups, inputs)
    truth = original_outputs(model, inputs)
    for (name, kind), array in zip(model.outputs, outputs, strict=True):
        assert array.shape == tuple(kind.shape)
        np.testing.assert_allclose(array, truth[name], rtol=1e-5, atol=1e-6)
    return assembled


@pytest.mark.parametrize(
    "groups",
    [
        [[0, 1, 2, 3, 4]],
        [[0], [1], [2], [3], [4]],
        [[3, 4], [0, 1], [2]],
        [[1, 2], [0], [3, 4]],
    ],
)
def test_any_cut_gives_the_models_numbers(groups):
    assembled = check(branches(), groups)
    assert [p.name for p in assembled.module()["main"].params] == ["unused", "x"]
    assert {kernel.part for kernel in assembled.calls} == set(range(len(groups)))


def test_partitions_run_in_the_order_their_values_need():
    assembled = check(branches(), [[3, 4], [0, 1], [2]])
    assert [kernel.part for kernel in assembled.calls] == [0, 0, 1, 2, 2]


def test_a_cyclic_cover_is_refused_and_its_partitions_are_named():
    # relu and add in one partition wait for exp, which waits for relu.
    with pytest.raises(ToolchainError, match=r"part0 → part1 → part0|part1 → part0 → part1"):
        execution_order(functions(branches(), [[0, 2, 3], [1], [4]]))


def test_a_model_of_no_operators_still_builds():
    model = onnx_model("(float[2] x) => (float[2] y) { y = Identity(x) }")
    assert not model.graph.operators
    check(model, [])
