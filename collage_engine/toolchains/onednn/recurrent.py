"""Lowers LSTM and GRU, which stay ONNX operators in the dataflow graph.

oneDNN has a primitive for each, which runs all steps. Its weights are those of ONNX with the gates
in another order and the matrices transposed: (layer, direction, input, gate, output).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.records.graph import Node, ValueIndex
from collage_engine.records.operators import PREFIX, title
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.onednn.steps import OneDnnProgram

_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2)}
"""The place in ONNX's order of each gate in oneDNN's order. An LSTM's gates are input, forget,
candidate and output in oneDNN, and input, output, forget and candidate in ONNX."""
_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
"""Each operator's activations, the only ones that oneDNN computes."""
_INPUTS = ("x", "weights", "recurrent", "bias", "lengths", "state", "cell_state", "peepholes")
"""ONNX's inputs in their order; a GRU has the first six."""
_DIRECTIONS = ("forward", "reverse", "bidirectional")


def field(plan: OneDnnProgram, node: Node, number: int) -> int:
    """Lowers one of an operator's results: the states of all steps, or the last ones.

    Args:
        plan: The program.
        node: The call.
        number: Which of the results that it has.

    Raises:
        UnsupportedError: oneDNN has no primitive for it, or the result is the last cell state.
    """
    kind = title(node.op)
    outputs = node.attributes.get("outputs", [])
    which = [output for output, given in enumerate(outputs) if given][number]
    if which == 2:
        raise UnsupportedError(f"{kind}: the last cell state is not taken from oneDNN")
    every = plan.shared.get(node.index)
    if every is None:
        every = plan.shared[node.index] = _all_steps(plan, node, kind)
    if which == 0:
        return every
    steps, directions, batch, hidden = plan.dims[every]
    backwards = [_direction(node) == "reverse"] if directions == 1 else [False, True]
    last = [
        plan.reshape(
            plan.slice(every, (1, 1, batch, hidden), {0: 0 if back else steps - 1, 1: at}),
            (1, batch, hidden),
        )
        for at, back in enumerate(backwards)
    ]
    if len(last) == 1:
        return last[0]
    return plan.emit("concat", (directions, batch, hidden), srcs=last, axis=0)


def _direction(node: Node) -> str:
    return str(node.attributes["attributes"].get("direction", "forward")).lower()


def _all_steps(plan: OneDnnProgram, node: Node, kind: str) -> int:
    """Append the primitive; returns the states of all steps as (step, direction, batch, state)."""
    given = _given(node, kind)
    attributes: dict[str, Any] = node.attributes["attributes"]
    _check(plan, node, kind, given, attributes)
    direction = _direction(node)
    directions = 2 if direction == "bidirectional" else 1
    x = plan.tensor(given["x"])
    steps, batch, size = plan.dims[x]
    gates = len(_GATES[kind])
    hidden = plan.graph.values[given["recurrent"]].type.shape[2]

    def matrices(name: str, rows: int) -> int:
        values = plan.array(given[name])
        dims = (1, directions, rows, gates, hidden)
        if values is None:
            return plan.new_value(dims)
        stacked = values.reshape(directions, gates, hidden, rows)[:, list(_GATES[kind])]
        return plan.constant(stacked.transpose(0, 3, 1, 2).reshape(dims))

    fields: dict[str, Any] = {
        "weights": matrices("weights", size),
        "recurrent": matrices("recurrent", hidden),
        "bias": _bias(plan, given.get("bias"), kind, (directions, gates, hidden)),
        "cell": kind.lower(),
        "direction": direction,
    }
    if "state" in given or "cell_state" in given:
        for name in ("state", "cell_state")[: 2 if kind == "LSTM" else 1]:
            dims = (1, directions, batch, hidden)
            if name in given:
                fields[name] = plan.reshape(plan.tensor(given[name]), dims)
            else:
                fields[name] = plan.constant(np.zeros(dims, np.float32))
    out = plan.emit("recurrent", (steps, batch, directions * hidden), src=x, **fields)
    parts = plan.reshape(out, (steps, batch, directions, hidden))
    return plan.permute(parts, (0, 2, 1, 3))


def _given(node: Node, kind: str) -> dict[str, ValueIndex]:
    """Return the operator's inputs by name, those that are left out excepted."""
    flags = node.attributes.get("inputs")
    if flags is None:
        raise UnsupportedError(f"{kind}: its weights are of a type that oneDNN has not")
    names = [name for name, there in zip(_INPUTS, flags, strict=False) if there]
    return dict(zip(names, node.inputs, strict=True))


def _check(
    plan: OneDnnProgram,
    node: Node,
    kind: str,
    given: dict[str, ValueIndex],
    attributes: dict[str, Any],
) -> None:
    """Raise UnsupportedError for what oneDNN's primitive does not compute."""
    direction = _direction(node)
    directions = 2 if direction == "bidirectional" else 1
    names = _activations(kind, attributes, directions)
    before = kind == "GRU" and not attributes.get("linear_before_reset", 0)
    wrong = [
        (direction not in _DIRECTIONS, f"no direction {direction!r}"),
        (names != _ACTIVATIONS[kind] * directions, f"no activations {', '.join(names)}"),
        (before, "no reset before the product here"),
        ("clip" in attributes, "no clipping"),
        (bool(attributes.get("input_forget", 0)), "no coupled input and forget gates"),
        (bool(attributes.get("layout", 0)), "no batch before the steps"),
        ("lengths" in given, "no lengths of sequences"),
        ("peepholes" in given, "no peepholes here"),
        (any(t.dtype != "float32" for t in node.types), "float32 only"),
    ]
    for refused, what in wrong:
        if refused:
            raise UnsupportedError(f"{kind}: oneDNN has {what}")
    for name in ("weights", "recurrent", "bias"):
        if name in given and not plan.graph.values[given[name]].constant:
            raise UnsupportedError(
                f"{kind}: its weights are no constants, which oneDNN packs beforehand"
            )


def _activations(kind: str, attributes: dict[str, Any], directions: int) -> tuple[str, ...]:
    default = _ACTIVATIONS[kind] * directions
    return tuple(str(name).lower() for name in attributes.get("activations") or default)


def _bias(
    plan: OneDnnProgram,
    index: ValueIndex | None,
    kind: str,
    dims: tuple[int, int, int],
) -> int:
    """Add the bias as (layer, direction, gate, output).

    ONNX adds one bias to the product with the input, and another one to that with the state. They
    are summed, but for the candidate of a GRU: its reset gate comes after the product, so that its
    second bias is a gate of its own.
    """
    directions, gates, hidden = dims
    apart = kind == "GRU"
    shape = (1, directions, gates + int(apart), hidden)
    values = np.zeros((directions, 2, gates, hidden), np.float32)
    if index is not None:
        given = plan.array(index)
        if given is None:
            return plan.new_value(shape)
        values = given.reshape(values.shape)
    values = values[:, :, list(_GATES[kind])]
    together = values[:, 0] + values[:, 1]
    if apart:
        together = np.concatenate([together[:, :2], values[:, 0, 2:], values[:, 1, 2:]], axis=1)
    return plan.constant(together.reshape(shape))


OPERATORS = tuple(PREFIX + kind for kind in _GATES)
"""Names that LSTM and GRU have in the dataflow graph."""
