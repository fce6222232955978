"""How far errors are carried, on models where it is known."""

from __future__ import annotations

import numpy as np
import pytest

from collage_engine.control.run_control import RunControl
from collage_engine.lowering.sensitivity import NOISE_LEVEL, carried
from collage_engine.records.cost_table import CostTable
from collage_engine.trials.error_propagation import downstream, factors_of
from collage_engine.trials.mixed_precision import products_of
from tests.support.toolchain_cases import Net, imported
from tests.zoo import build


def test_damped_and_full_errors_are_told_apart() -> None:
    """``y = relu(x) + 0.01 · tanh(x)``: what is added small is carried small."""
    net = Net()
    x = net.input(1, 64)
    large, small = net.add("Relu", x), net.add("Tanh", x)
    model = imported(net.model(net.add("Add", large, net.add("Mul", small, net.scalar(0.01)))))
    found = carried(model, [model.random_inputs(0)], model.graph.operators)
    by_op = {model.graph.nodes[i].op: factor for i, factor in found.items()}
    # The largest of x is 2 to 3, that of tanh is 1: errors are relative to each one's own.
    assert by_op["nn.relu"] == pytest.approx(1.0, abs=0.3)
    assert by_op["tanh"] == pytest.approx(0.01 / np.abs(model.random_inputs(0)["x0"]).max(), rel=1)
    assert by_op["add"] == 1.0


def test_an_average_does_not_take_away_what_is_alike_over_the_image() -> None:
    net = Net()
    y = net.add("GlobalAveragePool", net.add("Relu", net.input(1, 32, 32, 32)))
    model = imported(net.model(y))
    relu = model.graph.operators[0]
    found = carried(model, [model.random_inputs(0)], [relu])
    # Independent errors alone would be damped thirty-two-fold.
    assert found[relu] > 0.5


def test_values_onnx_lacks_have_their_readers_factor() -> None:
    model = imported(build("residual_block"))
    graph = model.graph
    found = carried(model, [model.random_inputs(s) for s in (0, 1)], graph.operators)
    assert found and all(factor > 0 for factor in found.values())
    everywhere = downstream(graph, found)
    for index in graph.operators:
        if index in found:
            assert everywhere[index] == found[index]
        elif graph.users[index]:
            assert everywhere[index] == max(everywhere[user] for user in graph.users[index])


def test_products_before_their_bias_are_weighed_by_where_it_is_added() -> None:
    """ONNX has no value between a convolution and its bias; two that are carried differently far
    must not be taken for alike."""
    net = Net()
    x = net.input(1, 8, 9, 9)
    near, far = (
        net.add("Conv", x, net.randn(8, 8, 1, 1), net.randn(8), kernel_shape=[1, 1])
        for _ in range(2)
    )
    model = imported(net.model(net.add("Add", near, net.add("Mul", far, net.scalar(0.01)))))
    products = list(products_of(model).values())
    assert not any(model.graph.nodes[index].onnx_value for index in products)
    factors = factors_of(model, [], CostTable(), [model.random_inputs(0)], RunControl())
    assert factors[products[0]] > 20 * factors[products[1]] > 0


def test_no_time_left_leaves_everything_unknown() -> None:
    model = imported(build("residual_block"))
    assert carried(model, [model.random_inputs(0)], model.graph.operators, limit_s=-1.0) == {}
    assert 1e-4 < NOISE_LEVEL < 1e-2


def test_a_refusal_is_said_and_a_defect_of_ours_is_not_hidden(monkeypatch) -> None:
    from collage_engine.lowering import sensitivity

    class Refuses:
        def open_onnx(self, *_: object, **__: object) -> None:
            raise RuntimeError("no kernel for Foo")

    def defect(*_: object) -> None:
        raise NameError("a defect of ours")

    model = imported(build("residual_block"))
    samples, operators, said = [model.random_inputs(0)], model.graph.operators, []
    monkeypatch.setattr(sensitivity, "onnx_evaluator", Refuses)
    assert carried(model, samples, operators, warn=said.append) == {}
    assert len(said) == 1 and "no kernel for Foo" in said[0]
    monkeypatch.setattr(sensitivity, "onnx_evaluator", lambda: None)
    assert carried(model, samples, operators, warn=said.append) == {}
    assert "no toolchain here evaluates ONNX" in said[1]
    monkeypatch.setattr(sensitivity, "onnx_evaluator", Refuses)
    monkeypatch.setattr(sensitivity, "_rounding_like", defect)
    with pytest.raises(NameError, match="a defect of ours"):
        carried(model, samples, operators, warn=said.append)
    assert len(said) == 2
