"""Gives LSTM, GRU and RNN one layout, and writes those of constant weights out step by step.

The products with the inputs of all steps are one product; a step is its slice of that, the
product with the state, and the gates. Values keep three dimensions, (step, batch, features).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from onnx import GraphProto, NodeProto, helper

from collage_engine.model.draft import Draft, Op, node_name

MOST_STEPS = 8
"""Steps of both directions together, above which a recurrent node stays one operator, which oneDNN,
OpenVINO and ONNX Runtime run. Chosen: on a bidirectional LSTM of 64 units the steps in TVM's or
OpenVINO's hands take 4 µs instead of 13 at 2, 8.7 instead of 11.5 at 4, 13.9 instead of 14.2 at 8,
but 28 instead of 20.5 at 16 (one thread of a Zen 4). A step becomes up to 16 operators, and
candidates are sought among all of them."""
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Matrices that are stacked in each weight, by operator (ONNX's definition)."""
_DEFAULT = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_WRITTEN = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu"}
_STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}

_STEPS_FIRST = [1, 0, 2]
"""Order of axes that swaps the batch with the steps of an input, or with the directions of a state;
its own inverse."""
_BATCH_FIRST = [2, 0, 1, 3]
"""Order of axes of the states of all steps, [step, direction, batch, features], that puts the batch
first (ONNX's definition of ``layout`` 1)."""


def steps_first(graph: GraphProto) -> None:
    """Replaces recurrent nodes whose batch comes first (``layout`` 1), in place and in branches.

    They become nodes of layout 0, the only one that ONNX Runtime knows, between transposes of their
    input, first states and results, which go by the node's name; in branches by none.
    """
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                steps_first(attribute.g)
                _drop_names_that_stand_twice(attribute.g)
        layout = next((a for a in node.attribute if a.name == "layout"), None)
        if node.op_type not in GATES or node.domain not in ("", "ai.onnx") or layout is None:
            graph.node.append(node)
            continue
        node.attribute.remove(layout)
        graph.node.extend(_between_transposes(node) if layout.i else [node])


def _drop_names_that_stand_twice(graph: GraphProto) -> None:
    counts = Counter(node.name for node in graph.node)
    for node in graph.node:
        if counts[node.name] > 1:
            node.name = ""


def _between_transposes(node: NodeProto) -> list[NodeProto]:
    own = node_name(node)
    stem = next(o for o in node.output if o)

    def transpose(value: str, result: str, order: list[int]) -> NodeProto:
        return helper.make_node("Transpose", [value], [result], own, perm=order)

    before, after = [], []
    for place in (0, 5, 6):  # the input, and the first states
        if place < len(node.input) and node.input[place]:
            turned = f"{stem} input {place}, steps first"
            before.append(transpose(node.input[place], turned, _STEPS_FIRST))
            node.input[place] = turned
    for place, value in enumerate(node.output):
        if value:
            turned = f"{value}, steps first"
            after.append(transpose(turned, value, _STEPS_FIRST if place else _BATCH_FIRST))
            node.output[place] = turned
    node.name = own
    return [*before, node, *after]


def written_out(draft: Draft, op: Op) -> list[Op] | None:
    """Return the steps; None where the node stays the operator that it is.

    It stays one while its size or its weights are not known, where there would be too many steps,
    and in forms that are not written out.
    """
    shape = draft.shape(op.inputs[0])
    lengths = op.input(4)
    if shape is None or not all(v in draft.constants for v in [*op.inputs[1:4], lengths] if v):
        return None
    direction = op.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    names = [
        str(n.decode() if isinstance(n, bytes) else n)
        for n in op.attribute("activations") or _DEFAULT[op.type] * directions
    ]
    activations = [_WRITTEN.get(name.lower(), "") for name in names]
    as_it_is = (
        not all(activations)
        or op.attribute("clip") is not None
        or bool(op.attribute("input_forget", 0))
        or (op.type == "LSTM" and bool(op.input(7)))  # peepholes
        or (bool(lengths) and bool(np.any(draft.constants[lengths] != shape[0])))
        or shape[0] * directions > MOST_STEPS
    )
    if as_it_is:
        return None
    made = _Made(draft, op)
    each = len(activations) // directions
    tracks = [
        _track(
            made,
            at,
            shape[0],
            activations[at * each : (at + 1) * each],
            direction == "reverse" or at == 1,
        )
        for at in range(directions)
    ]
    if op.outputs[0]:
        rows = [made.add("Concat", *t.steps, axis=0) for t in tracks]
        made.outer(op.outputs[0], [made.unsqueeze(row) for row in rows])
    for place in range(_STATES[op.type]):
        if len(op.outputs) > place + 1 and op.outputs[place + 1]:
            made.outer(op.outputs[place + 1], [t.last[place] for t in tracks], axis=0)
    return made.ops


@dataclass
class _Made:
    """Operators under construction, all of them in the place of ``of``."""

    draft: Draft
    of: Op
    ops: list[Op] = field(default_factory=list)

    def add(self, kind: str, *inputs: str, **attributes: int) -> str:
        value = self.draft.fresh(f"{self.of.outputs[0] or self.of.name}_{kind.lower()}")
        new = self.of.part(kind, list(inputs), [value])
        new.set(**attributes)
        self.ops.append(new)
        return value

    def const(self, values: np.ndarray) -> str:
        return self.draft.constant(f"{self.of.name}_const", values)

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64))

    def cut(self, value: str, axis: int, start: int, stop: int) -> str:
        if self.draft.opset >= 10:
            return self.add("Slice", value, self.ints(start), self.ints(stop), self.ints(axis))
        new = self.add("Slice", value)
        self.ops[-1].set(starts=[start], ends=[stop], axes=[axis])
        return new

    def unsqueeze(self, value: str) -> str:
        """Return (step, batch, features) as (step, 1, batch, features)."""
        if self.draft.opset >= 13:
            return self.add("Unsqueeze", value, self.ints(1))
        new = self.add("Unsqueeze", value)
        self.ops[-1].set(axes=[1])
        return new

    def outer(self, name: str, parts: list[str], axis: int = 1) -> None:
        """Make an output of the operator out of one part a direction."""
        new = self.of.part("Concat", parts, [name])
        new.set(axis=axis)
        self.ops.append(new)


@dataclass
class _Track:
    """One direction: the state after every step in order of time, and the last states."""

    steps: list[str]
    last: list[str]


def _track(made: _Made, at: int, steps: int, activations: list[str], backwards: bool) -> _Track:
    draft, op = made.draft, made.of
    weights = draft.constants[op.inputs[1]][at]
    recurrent = draft.constants[op.inputs[2]][at]
    gates = GATES[op.type]
    hidden = recurrent.shape[1]
    bias = np.zeros((2, gates * hidden), weights.dtype)
    if op.input(3):
        bias = draft.constants[op.inputs[3]][at].reshape(2, -1)
    inside = bias[1].copy()
    if op.type != "GRU":
        inside[:] = 0
    else:
        inside[: 2 * hidden] = 0  # those of the gates can be added outside, that of h cannot
    outside = bias[0] + bias[1] - inside
    every = made.add("MatMul", op.inputs[0], made.const(np.ascontiguousarray(weights.T)))
    every = made.add("Add", every, made.const(outside))
    cell = _Cell(made, activations, hidden, np.ascontiguousarray(recurrent.T), inside)
    state: list[str | None] = [
        made.cut(op.input(5 + k), 0, at, at + 1) if op.input(5 + k) else None
        for k in range(_STATES[op.type])
    ]
    done: dict[int, str] = {}
    for step in reversed(range(steps)) if backwards else range(steps):
        new = cell.step[op.type](made.cut(every, 0, step, step + 1), state)
        state = [*new]
        done[step] = new[0]
    return _Track([done[k] for k in range(steps)], [s for s in state if s is not None])


@dataclass
class _Cell:
    """The computation of one step. ``state`` is h, and c of an LSTM; None stands for zero."""

    made: _Made
    activations: list[str]
    hidden: int
    recurrent: np.ndarray
    """The weight that multiplies the state: [hidden, gates · hidden]."""
    inside: np.ndarray
    """The part of the bias that belongs to the product with the state."""

    def __post_init__(self) -> None:
        self.step: dict[str, Callable[[str, list[str | None]], list[str]]] = {
            "LSTM": self._lstm,
            "GRU": self._gru,
            "RNN": self._rnn,
        }
        self._weights = self.made.const(self.recurrent)

    def _gate(self, value: str, number: int, count: int = 1) -> str:
        return self.made.cut(value, 2, number * self.hidden, (number + count) * self.hidden)

    def _with_state(self, x: str, h: str | None) -> str:
        if h is None:
            return x
        return self.made.add("Add", x, self.made.add("MatMul", h, self._weights))

    def _rnn(self, x: str, state: list[str | None]) -> list[str]:
        return [self.made.add(self.activations[0], self._with_state(x, state[0]))]

    def _lstm(self, x: str, state: list[str | None]) -> list[str]:
        """Write a step of an LSTM, gates i, o, f, c: c' = f·c + i·g(c), h' = o·h(c')."""
        made, (f, g, h) = self.made, self.activations
        z = self._with_state(x, state[0])
        new = made.add("Mul", made.add(f, self._gate(z, 0)), made.add(g, self._gate(z, 3)))
        if state[1] is not None:
            kept = made.add("Mul", made.add(f, self._gate(z, 2)), state[1])
            new = made.add("Add", kept, new)
        return [made.add("Mul", made.add(f, self._gate(z, 1)), made.add(h, new)), new]

    def _gru(self, x: str, state: list[str | None]) -> list[str]:
        """Write a step of a GRU, gates z, r, h: h' = (1 − z)·g(h) + z·h = g(h) + z·(h − g(h))."""
        made, (f, g), h = self.made, self.activations, state[0]
        late = bool(made.of.attribute("linear_before_reset", 0))
        bias = made.const(self.inside[2 * self.hidden :])
        if h is None:
            update = made.add(f, self._gate(x, 0))
            inner = bias
            if late:
                inner = made.add("Mul", made.add(f, self._gate(x, 1)), bias)
            fresh = made.add(g, made.add("Add", self._gate(x, 2), inner))
            return [made.add("Sub", fresh, made.add("Mul", update, fresh))]
        if late:
            product = made.add("MatMul", h, self._weights)
            both = made.add(f, made.add("Add", self._gate(x, 0, 2), self._gate(product, 0, 2)))
            inner = made.add("Add", self._gate(product, 2), bias)
            inner = made.add("Mul", self._gate(both, 1), inner)
        else:
            gates = made.const(np.ascontiguousarray(self.recurrent[:, : 2 * self.hidden]))
            product = made.add("MatMul", h, gates)
            both = made.add(f, made.add("Add", self._gate(x, 0, 2), product))
            weights = made.const(np.ascontiguousarray(self.recurrent[:, 2 * self.hidden :]))
            inner = made.add("MatMul", made.add("Mul", self._gate(both, 1), h), weights)
            inner = made.add("Add", inner, bias)
        fresh = made.add(g, made.add("Add", self._gate(x, 2), inner))
        back = made.add("Mul", self._gate(both, 0), made.add("Sub", h, fresh))
        return [made.add("Add", fresh, back)]
