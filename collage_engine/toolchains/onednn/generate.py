"""Generates the program of the oneDNN runtime from a function: operators with post-ops.

Exporters and TVM's importer write GELU, SiLU and the like as up to ten operators. Such a chain is
one oneDNN function, a composite: it is recognised on the dataflow graph by pattern, its scalar
constants are checked when the function is compiled, and it becomes one step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Match, anything, closed_matches, disjoint
from collage_engine.records.format import TO_LOGICAL, TO_STORED, stored_shape
from collage_engine.records.graph import (
    Node,
    OperatorNumber,
    OperatorSet,
    ValueIndex,
    members,
    operator_set,
)
from collage_engine.records.operators import onnx_type
from collage_engine.records.precision import BFLOAT16
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.onednn import recurrent
from collage_engine.toolchains.onednn.anchors import ANCHORS
from collage_engine.toolchains.onednn.elements import ELEMENTS, split_field
from collage_engine.toolchains.onednn.fuse import fuse
from collage_engine.toolchains.onednn.steps import OneDnnProgram
from collage_engine.toolchains.runtime.chains import ACTIVATIONS, VALUES

_ACTIVATIONS = {
    "gelu_erf": ("gelu_erf", 0.0, 0.0),
    "gelu_tanh": ("gelu_tanh", 0.0, 0.0),
    "hardswish": ("hardswish", 1 / 6, 0.5),
    "silu": ("swish", 1.0, 0.0),
}
"""By chain: oneDNN's function that it is, with its parameters."""


@lru_cache(maxsize=8)  # a process works on one model, or on a few of its shapes
def _composites(graph: DataflowGraph) -> tuple[Match, ...]:
    """Return the places of composites in a graph whose operators are read by nobody else."""
    table = ((name, chain(anything("x"))) for name, chain in ACTIVATIONS.items())
    return tuple(closed_matches(graph, table))


LOWERINGS: dict[str, Callable[[OneDnnProgram, Node], int]] = {
    **ANCHORS,
    **ELEMENTS,
}
"""The function that lowers each Relax operator with one result."""
RESULTS: dict[str, Callable[[OneDnnProgram, Node, int], int]] = {
    "split": split_field,
    **dict.fromkeys(recurrent.OPERATORS, recurrent.field),
}
"""The function that lowers one of the results of each operator that may have several."""


def generate(function: Function) -> tuple[OneDnnProgram, tuple[int, ...], tuple[int, ...]]:
    """Generate the fused program of a function.

    A border value that is taken or given in another format is the stored tensor; its logical self
    is a permuted view of it, which costs nothing.

    Returns:
        The program, and the values in it that are its inputs and its outputs.

    Raises:
        UnsupportedError: oneDNN cannot take an operator; the text names it.
    """
    narrow, full = function.instance.precision == BFLOAT16, function.left_full
    graph, nodes = function.graph, function.nodes
    plan = OneDnnProgram(graph, function.constant, lambda index: narrow and index not in full)
    input_values = tuple(_define_input(plan, i, nodes) for i in function.inputs)
    for index, name in function.takes.items():
        stored = plan.of_node[index]
        plan.dims[stored] = stored_shape(plan.dims[stored], name)
        plan.of_node[index] = plan.permute(stored, TO_LOGICAL[name])
    plan.inputs = frozenset(input_values)
    leaving = operator_set(graph.record.producers(function.outputs))
    _lower_all(plan, nodes, disjoint(_composites(graph), nodes, leaving))
    for index, name in function.gives.items():
        plan.of_node[index] = plan.permute(plan.tensor(index), TO_STORED[name])
    output_values = tuple(plan.tensor(i) for i in function.outputs)
    fuse(plan, output_values)
    return plan, input_values, output_values


def _define_input(plan: OneDnnProgram, index: ValueIndex, nodes: OperatorSet) -> int:
    """Add a tensor that the function takes; returns its number."""
    try:
        plan.of_node[index] = plan.new_value(plan.shape_of(index))
        return plan.of_node[index]
    except UnsupportedError as error:
        reader = next(u for u in plan.graph.readers[index] if nodes >> u & 1)
        raise UnsupportedError(f"{onnx_type(plan.graph.nodes[reader].op)}: {error}") from error


def _lower_all(
    plan: OneDnnProgram, nodes: OperatorSet, composites: dict[OperatorNumber, Match]
) -> None:
    part_of = {i: root for root, match in composites.items() for i in members(match.nodes)}
    for index in members(nodes):
        root = part_of.get(index)
        if root is None:
            _lower_call(plan, plan.graph.nodes[index])
        elif index == root and not _lower_composite(plan, composites[root]):
            # Its constants are others than expected: operator by operator, the root last.
            for inner in members(composites[root].nodes):
                _lower_call(plan, plan.graph.nodes[inner])


def _lower_composite(plan: OneDnnProgram, match: Match) -> bool:
    """Lower a composite; False where constants have other values than expected."""
    plan.current = tuple(members(match.nodes))
    bound = match.bindings
    if match.kind == "hardsigmoid":
        alpha, beta = (plan.scalar(bound[name]) or 0.0 for name in ("alpha", "beta"))
        function = ("hardsigmoid", alpha, beta)
    else:
        for name in () if plan.dry else VALUES.keys() & bound.keys():
            given = plan.scalar(bound[name])
            if given is None or not np.isclose(given, VALUES[name], rtol=1e-3):
                return False
        function = _ACTIVATIONS[match.kind]
    plan.of_node[match.root] = plan.eltwise(plan.tensor(bound["x"]), *function)
    return True


def _lower_call(plan: OneDnnProgram, node: Node) -> None:
    plan.current = (node.index,)
    lower_result = RESULTS.get(node.op)
    if lower_result is not None:
        for index in plan.graph.used_results(node.index):
            plan.of_node[index] = lower_result(plan, node, node.outputs.index(index))
        return
    lower = LOWERINGS.get(node.op)
    if lower is None:
        raise UnsupportedError(f"oneDNN has no {onnx_type(node.op)}")
    if node.type.dtype != "float32":
        raise UnsupportedError(
            f"{onnx_type(node.op)}: the oneDNN runtime computes float32, not {node.type.dtype}"
        )
    value = lower(plan, node)
    if plan.dims[value] != (node.type.shape or (1,)):
        raise UnsupportedError(f"{onnx_type(node.op)}: its result has an unexpected shape")
    plan.of_node[node.index] = value


def reason_against(graph: DataflowGraph, index: OperatorNumber) -> str | None:
    """Return why oneDNN cannot run a call on its own; None where it can, hence anywhere."""
    return _reasons(graph)[index]


@lru_cache(maxsize=8)  # as above
def _reasons(graph: DataflowGraph) -> list[str | None]:
    return [_refusal(graph, index) for index in graph.operators]


def _refusal(graph: DataflowGraph, index: OperatorNumber) -> str | None:
    node = graph.nodes[index]
    plan = OneDnnProgram(graph, None)
    try:
        for source in node.inputs:
            if not graph.values[source].constant and source not in plan.of_node:
                _define_input(plan, source, 1 << index)
        _lower_call(plan, node)
    except UnsupportedError as error:
        return str(error)
    return None
