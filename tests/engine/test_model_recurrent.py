"""LSTM, GRU and RNN compute what ONNX Runtime's do, with steps or batches first."""

from __future__ import annotations

import tempfile

import numpy as np
import onnx
import pytest

from collage_engine.lowering.reference import TrueValues, original_outputs
from collage_engine.model.importer import import_onnx
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
    assert {n.onnx_nodes for n in imported.graph.nodes if n.form == "call"} == {("cell",)}
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


def batch_first(
    kind: str, direction: str, lengths: bool, outputs: tuple[bool, ...]
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the same layer in layout 1 and in layout 0."""
    made = []
    for layout in (1, 0):
        more = {"layout": layout} if layout else {}
        net = recurrent(kind, direction, True, True, more, 17)
        if lengths:
            net.nodes[0].input[4] = net.const(np.int32([STEPS, STEPS - 1]))
        if layout:
            for value in net.inputs:
                dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
                for dim, size in zip(
                    value.type.tensor_type.shape.dim, (dims[1], dims[0], dims[2]), strict=True
                ):
                    dim.dim_value = size
        kept = [output for output, wanted in zip(net.outputs, outputs, strict=False) if wanted]
        for place, wanted in enumerate(outputs):
            if not wanted and place < len(net.nodes[0].output):
                net.nodes[0].output[place] = ""
        net.outputs = kept
        made.append(net.model())
    return made[0], made[1]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", list(GATES))
def test_a_layer_whose_batch_comes_first(kind: str, direction: str) -> None:
    """ONNX Runtime refuses it; the truth is its own layer in layout 0, with axes swapped."""
    check_batch_first(*batch_first(kind, direction, False, (True, True, True)))


@pytest.mark.parametrize(
    "lengths, outputs",
    [
        (True, (True, True, True)),
        (False, (False, True, False)),
        (False, (True, False, True)),
    ],
)
def test_a_layer_whose_batch_comes_first_with_lengths_or_fewer_outputs(
    lengths: bool, outputs: tuple[bool, ...]
) -> None:
    check_batch_first(*batch_first("LSTM", "bidirectional", lengths, outputs))


def check_batch_first(model: onnx.ModelProto, plain: onnx.ModelProto) -> None:
    imported = import_onnx(model, evaluate=run_onnx)
    assert {n.onnx_nodes for n in imported.graph.nodes if n.form == "call"} == {("cell",)}
    check_accounting(model, imported)
    inputs = imported.random_inputs(1)
    swapped = {name: np.ascontiguousarray(v.swapaxes(0, 1)) for name, v in inputs.items()}
    wanted = [
        y.transpose(2, 0, 1, 3) if y.ndim == 4 else y.swapaxes(0, 1)
        for y in run_onnx(plain, swapped)
    ]
    truth = original_outputs(imported, inputs)
    with tempfile.TemporaryDirectory() as folder:
        values = TrueValues.record(imported, inputs, folder)
        for (name, _), index, true in zip(
            imported.outputs, imported.graph.record.outputs, wanted, strict=True
        ):
            np.testing.assert_allclose(values.value(index), true, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(truth[name], true, rtol=1e-5, atol=1e-6)
