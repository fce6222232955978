"""LSTM and GRU on oneDNN's primitives, against unoptimised ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.onednn.toolchain import OneDnnToolchain
from tests.support.onednn_checks import check, steps, weights
from tests.support.toolchain_cases import available, default_instance, imported, one_operator, whole

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, SIZE, HIDDEN = 12, 3, 5, 7
"""More steps than are written out."""


@pytest.fixture(scope="module")
def toolchain() -> OneDnnToolchain:
    return available(OneDnnToolchain())


def recurrent(
    kind: str,
    direction: str = "forward",
    *,
    bias: bool = True,
    states: tuple[bool, ...] = (),
    lengths: bool = False,
    outputs: int = 2,
    peepholes: bool = False,
    **attributes: Any,
) -> ModelProto:
    """A model of one recurrent operator; ``states`` says which first states are inputs."""
    ways, rows = (2 if direction == "bidirectional" else 1), GATES[kind] * HIDDEN
    operands: list[Any] = [(STEPS, BATCH, SIZE), weights(ways, rows, SIZE)]
    operands += [weights(ways, rows, HIDDEN), weights(ways, 2 * rows) if bias else None]
    operands.append(np.int32([STEPS, STEPS - 1, 2]) if lengths else None)
    operands += [(ways, BATCH, HIDDEN) if given else None for given in states]
    if peepholes:
        operands += [None] * (7 - len(operands)) + [weights(ways, 3 * HIDDEN)]
    more = {"hidden_size": HIDDEN, "direction": direction, **attributes}
    return one_operator(kind, *operands, outputs=outputs, **more)


CASES = {
    "lstm": recurrent("LSTM"),
    "lstm, one result": recurrent("LSTM", outputs=1),
    "lstm backwards, no bias": recurrent("LSTM", "reverse", bias=False),
    "lstm both ways": recurrent("LSTM", "bidirectional"),
    "lstm both ways, states": recurrent("LSTM", "bidirectional", states=(True, True)),
    "lstm, one state": recurrent("LSTM", states=(True, False)),
    "gru": recurrent("GRU", linear_before_reset=1),
    "gru backwards": recurrent("GRU", "reverse", linear_before_reset=1, bias=False),
    "gru both ways, state": recurrent(
        "GRU", "bidirectional", states=(True,), linear_before_reset=1
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_all_steps_are_one_primitive(toolchain: OneDnnToolchain, name: str) -> None:
    inside = check(toolchain, CASES[name])
    cells = {"lstm", "gru"}
    assert len([what for what in steps(inside) if what in cells]) == 1


REFUSED = {
    "last cell state": (recurrent("LSTM", outputs=3), "last cell state"),
    "lengths": (recurrent("GRU", lengths=True, linear_before_reset=1), "no lengths of sequences"),
    "peepholes": (recurrent("LSTM", peepholes=True), "no peepholes"),
    "clipping": (recurrent("LSTM", clip=1.0), "no clipping"),
    "activations": (
        recurrent("LSTM", activations=["Sigmoid", "Relu", "Tanh"]),
        "no activations sigmoid, relu, tanh",
    ),
    "reset before the product": (recurrent("GRU"), "no reset before the product"),
    "rnn": (recurrent("RNN"), "no RNN"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_primitives_do_not_compute_is_refused(
    toolchain: OneDnnToolchain, name: str
) -> None:
    model, says = REFUSED[name]
    net = imported(model)
    function = whole(net, default_instance(toolchain))
    (index,) = net.graph.operators
    reason = toolchain.supports(net.graph, index, function.instance)
    assert reason is not None and says in reason
    with pytest.raises(UnsupportedError):
        toolchain.compile(function)
