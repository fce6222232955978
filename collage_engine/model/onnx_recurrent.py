"""Gives LSTM, GRU and RNN the layout whose steps come first: (step, batch, features)."""

from __future__ import annotations

from collections import Counter

from onnx import GraphProto, NodeProto, helper

from collage_engine.model.draft import node_name

_RECURRENT = {"LSTM", "GRU", "RNN"}

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
        if node.op_type not in _RECURRENT or node.domain not in ("", "ai.onnx") or layout is None:
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
