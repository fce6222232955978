"""Inspection of a candidate (Relax, TIR, source, plan), and of a node (weights, nested graphs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from collage_engine.candidates.open_model import OpenModel
from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of, relax_module
from collage_engine.model.importer import ImportedModel
from collage_engine.model.opaque import type_name
from collage_engine.planning.explanation import MOST_LISTED
from collage_engine.records.answers import (
    InsideAnswer,
    NestedGraph,
    NestedNode,
    WeightStatistics,
)
from collage_engine.records.candidate import Candidate
from collage_engine.support.errors import CollageError

BINS = 40
"""Bins of a histogram of weights; chosen, to fit the panel that shows it."""


ALGORITHM = ("implementation", "kernel", "algorithm", "engine", "schedule")
"""What toolchains call that which computes a step (``capabilities.Inspectable``)."""


def inspect_candidate(
    open_model: OpenModel, *, candidate: Candidate | None, node: int | None
) -> InsideAnswer:
    """Lower a candidate and describe it, and describe what a node holds.

    Args:
        open_model: The model.
        candidate: The candidate; None: only a node is asked for.
        node: Operator number of the node whose weights and nested graphs are asked for; None: only
            a candidate is asked for.
    """
    of_node = InsideAnswer()
    if node is not None:
        of_node = InsideAnswer(
            weights=weights_of(open_model, node), graphs=nested_graphs(open_model.model, node)
        )
    if candidate is None:
        return of_node
    model = open_model.model
    try:
        function = function_of(
            model,
            candidate.instance,
            candidate.nodes,
            "candidate",
            takes=candidate.takes,
            gives=candidate.gives,
        )
        module = relax_module(model, function.nodes, function.inputs, function.outputs)
        # Constants are shown by shape; their values would drown the program.
        relax = module["main"].script(show_meta=False)
    except CollageError as error:
        return msgspec.structs.replace(of_node, reason=str(error))
    try:
        with compile_function(function) as compiled:
            details: dict[str, Any] = compiled.inside()
    except CollageError as error:
        return msgspec.structs.replace(of_node, relax=relax, reason=str(error))
    kernels = details.get("kernels", [])
    steps = [details] if "what" in details else details.get("steps", kernels)
    return msgspec.structs.replace(
        of_node,
        relax=relax,
        tir="\n".join(kernel["tir"] for kernel in kernels) or None,
        plan=tuple(map(_step, steps)),
    )


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a toolchain says of a step or kernel, by the names of ``InsideAnswer.plan``."""
    layout = " → ".join(step[key] for key in ("takes", "gives") if step.get(key))
    return {
        "op": step.get("what") or step.get("name", ""),
        "algorithm": next((step[key] for key in ALGORITHM if step.get(key)), ""),
        "layout": step.get("layout") or layout,
        "post_ops": step.get("fused", ""),
    }


def nested_graphs(model: ImportedModel, operator: int) -> tuple[NestedGraph, ...]:
    """Return the branches and bodies inside an opaque operator, or the nodes that it stands for.

    Args:
        model: The imported model.
        operator: The operator number; one that is not opaque has none.
    """
    opaque = model.opaque_operator(operator)
    if opaque is None:
        return ()
    if len(opaque.nodes) == 1:
        return _bodies(opaque.nodes[0])
    listed = tuple(map(_nested_node, opaque.nodes[:MOST_LISTED]))
    left_out = len(opaque.nodes) - len(listed)
    together = NestedGraph(
        name="", inputs=opaque.inputs, outputs=opaque.outputs, nodes=listed, left_out=left_out
    )
    return (together,)


def _bodies(node: NodeProto) -> tuple[NestedGraph, ...]:
    graphs = [(a.name, a.g) for a in node.attribute if a.type == AttributeProto.GRAPH]
    return tuple(_nested_graph(name, graph) for name, graph in graphs)


def _nested_graph(name: str, graph: GraphProto) -> NestedGraph:
    return NestedGraph(
        name=name,
        inputs=tuple(value.name for value in graph.input),
        outputs=tuple(value.name for value in graph.output),
        nodes=tuple(map(_nested_node, graph.node[:MOST_LISTED])),
        left_out=max(0, len(graph.node) - MOST_LISTED),
    )


def _nested_node(node: NodeProto) -> NestedNode:
    return NestedNode(
        type=type_name(node),
        name=node.name,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        bodies=_bodies(node),
    )


def weights_of(open_model: OpenModel, operator: int) -> tuple[WeightStatistics, ...]:
    """Return statistics of every constant that an operator reads.

    Args:
        open_model: The model.
        operator: The operator number.
    """
    graph = open_model.model.graph
    read = (graph.values[i] for i in dict.fromkeys(graph.nodes[operator].inputs))
    weights = []
    for constant in (value for value in read if value.constant):
        values = np.asarray(open_model.model.constant(constant.index)).astype(np.float64).ravel()
        finite = values[np.isfinite(values)]
        if not finite.size:
            continue
        counts, edges = np.histogram(finite, bins=BINS)
        weights.append(
            WeightStatistics(
                name=constant.name,
                shape=constant.type.shape,
                dtype=constant.type.dtype,
                minimum=float(finite.min()),
                maximum=float(finite.max()),
                mean=float(finite.mean()),
                deviation=float(finite.std()),
                zeros=float((finite == 0).mean()),
                histogram=tuple(int(c) for c in counts),
                edges=tuple(float(e) for e in edges),
            )
        )
    return tuple(weights)
