"""LSTM, GRU and RNN compute what ONNX Runtime's do, with steps first."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest

from collage_engine.lowering.reference import TrueValues
from collage_engine.model.importer import import_onnx
from collage_engine.support.errors import ModelError
from tests.support.model_runs import check_accounting, run_onnx
from tests.zoo.net import Net

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUT, HIDDEN = 3, 2, 5, 4
CASES = [
    # kind, direction, bias, first state, attributes, opset
    ("LSTM", "forward", True, True, {}, 17),
    ("LSTM", "bidirectional", True, False, {}, 17),
    ("LSTM", "reverse", False, True, {}, 7),
    ("GRU", "forward", True, True, {"linear_before_reset": 1}, 17),
    ("GRU", "forward", True, True, {}, 17),
    ("GRU", "bidirectional", True, False, {"linear_before_reset": 1}, 13),
    ("GRU", "reverse", False, False, {}, 9),
    ("RNN", "bidirectional", True, True, {"activations": ["Relu", "Tanh"]}, 17),
    ("RNN", "forward", False, False, {}, 11),
]


def recurrent(kind: str, direction: str, bias: bool, first: bool, more: dict, opset: int) -> Net:
    net = Net("recurrent", opset=opset)
    ways = 2 if direction == "bidirectional" else 1
    rows = GATES[kind] * HIDDEN
    values = net.random.standard_normal
    inputs = [net.input("x", [STEPS, BATCH, INPUT])]
    inputs += [net.const(0.5 * values((ways, rows, n)).astype(np.float32)) for n in (INPUT, HIDDEN)]
    inputs.append(net.const(values((ways, 2 * rows)).astype(np.float32)) if bias else "")
    inputs.append("")
    if first:
        states = 2 if kind == "LSTM" else 1
        inputs += [net.input(f"state{k}", [ways, BATCH, HIDDEN]) for k in range(states)]
    outputs = net.op(
        kind,
        *inputs,
        outputs=3 if kind == "LSTM" else 2,
        name="cell",
        hidden_size=HIDDEN,
        direction=direction,
        **more,
    )
    for output in outputs:
        net.output(output)
    return net


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[5]}")
def test_a_recurrent_layer_is_one_operator(case: tuple) -> None:
    stays_one_operator(recurrent(*case), case[0])


def stays_one_operator(net: Net, kind: str) -> None:
    """Import the model, whose recurrent node must stay as it is and keep its numbers."""
    model = net.model()
    imported = import_onnx(model, "m.onnx", evaluate=run_onnx)
    assert f"onnx:{kind}" in {imported.graph.nodes[i].op for i in imported.graph.operators}
    check_accounting(model, imported)
    assert {n.onnx_nodes for n in imported.graph.nodes} == {("cell",)}
    inputs = imported.random_inputs(0)
    with tempfile.TemporaryDirectory() as folder:
        values = TrueValues.record(imported, inputs, folder)
        for wanted, index in zip(
            run_onnx(model, inputs), imported.graph.record.outputs, strict=True
        ):
            np.testing.assert_allclose(values.value(index), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("more", [{"clip": 1.0}, {"activations": ["Softsign"]}])
def test_other_activations_stay_one_operator(more: dict) -> None:
    stays_one_operator(recurrent("RNN", "forward", True, False, more, 17), "RNN")


def test_sequences_of_several_lengths_stay_one_operator() -> None:
    net = recurrent("GRU", "forward", True, False, {}, 17)
    net.nodes[0].input[4] = net.const(np.int32([STEPS, STEPS - 1]))
    stays_one_operator(net, "GRU")


def test_a_layer_whose_batch_comes_first_is_refused() -> None:
    model = recurrent("GRU", "forward", True, False, {"layout": 1}, 17).model(check=False)
    with pytest.raises(ModelError, match=r"'cell' \(GRU\) has its batch first"):
        import_onnx(model)
