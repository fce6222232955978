"""One candidate compiled alone: native and external."""

from __future__ import annotations

import numpy as np
import pytest

from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import ToolchainInstance
from tests.engine.test_lowering_rewrite import branches
from tests.support.plain_toolchain import PLAIN, register

CHAINED = ToolchainInstance(toolchain="onnxruntime")


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    register(monkeypatch)


def truth(x):
    a = np.maximum(x, 0)
    return {"exp": np.exp(a), "sum": np.exp(a) + np.tanh(a)}


@pytest.mark.parametrize("instance", [PLAIN, CHAINED], ids=lambda i: i.toolchain)
def test_inputs_and_outputs_are_those_of_the_border(instance):
    model = branches()
    # exp (read by add outside of it, and an output) and add; tanh stays outside.
    function = function_of(model, instance, (0, 1), "f")
    x = np.random.default_rng(0).standard_normal((2, 4), dtype="float32")
    assert [model.graph.nodes[i].name for i in function.inputs] == ["x"]
    with compile_function(function) as compiled:
        outputs = compiled.run([x])
        assert len(outputs) == 2  # relu is read outside as well
        np.testing.assert_allclose(outputs[0], np.maximum(x, 0), rtol=1e-6)
        np.testing.assert_allclose(outputs[1], truth(x)["exp"], rtol=1e-5)
        again = compiled.run([x * 0])
        np.testing.assert_allclose(outputs[1], truth(x)["exp"], rtol=1e-5)  # a copy, not a view
        np.testing.assert_allclose(again[1], 1.0)
        assert isinstance(compiled.inside(), dict)


@pytest.mark.parametrize("instance", [PLAIN, CHAINED], ids=lambda i: i.toolchain)
def test_the_timer_counts_seconds_of_n_calls(instance):
    model = branches()
    function = function_of(model, instance, (0, 1, 2, 3, 4), "f")
    x = np.zeros((2, 4), "float32")
    with compile_function(function) as compiled:
        timer = compiled.timer([x])
        few = min(timer(10) for _ in range(5))
        many = min(timer(1000) for _ in range(5))
        assert 0 < few < many
        assert many / 1000 == pytest.approx(few / 10, rel=5)


def test_wrong_arguments_are_refused_with_a_sentence():
    model = branches()
    with compile_function(function_of(model, PLAIN, (0,), "f")) as compiled:
        with pytest.raises(ToolchainError, match="takes 1 inputs, 2 were given"):
            compiled.run([np.zeros((2, 4), "float32")] * 2)
        with pytest.raises(ToolchainError, match=r"expected float32\[2,4\], got float32\[4,2\]"):
            compiled.run([np.zeros((4, 2), "float32")])
        with pytest.raises(ToolchainError, match=r"got float64\[2,4\]"):
            compiled.run([np.zeros((2, 4))])
