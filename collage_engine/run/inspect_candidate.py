"""Inspection of a candidate (its Relax, TIR, source and plan) and of a node's weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.candidates.open_model import OpenModel
from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of, relax_module
from collage_engine.records.answers import InsideAnswer, WeightStatistics
from collage_engine.records.candidate import Candidate
from collage_engine.records.errors import CollageError

BINS = 40
"""Bins of a histogram of weights; chosen, to fit the panel that shows it."""


def inspect_candidate(
    open_model: OpenModel, *, candidate: Candidate | None, node: int | None
) -> InsideAnswer:
    """Lower a candidate and describe it, and describe the weights that a node reads.

    Args:
        open_model: The model.
        candidate: The candidate; None: only weights are asked for.
        node: Operator number of the node whose weights are asked for; None: no weights are.
    """
    weights: tuple[WeightStatistics, ...] = ()
    if node is not None:
        weights = weights_of(open_model, node)
    if candidate is None:
        return InsideAnswer(weights=weights)
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
        return InsideAnswer(weights=weights, reason=str(error))
    try:
        with compile_function(function) as compiled:
            found: dict[str, Any] = compiled.inside()
    except CollageError as error:
        return InsideAnswer(relax=relax, weights=weights, reason=str(error))
    plan = found.get("plan") or found.get("steps") or ()
    return InsideAnswer(
        relax=relax,
        tir=found.get("tir"),
        source=found.get("source"),
        plan=tuple(step if isinstance(step, dict) else {"op": str(step)} for step in plan),
        weights=weights,
    )


def weights_of(open_model: OpenModel, operator: int) -> tuple[WeightStatistics, ...]:
    """Statistics of every constant that an operator reads."""
    graph = open_model.model.graph
    call = graph.nodes[graph.operators[operator]]
    constants = [
        graph.nodes[i] for i in dict.fromkeys(call.inputs) if graph.nodes[i].form == "constant"
    ]
    found = []
    for constant in constants:
        values = np.asarray(open_model.model.constant(constant.index)).astype(np.float64).ravel()
        finite = values[np.isfinite(values)]
        if not finite.size:
            continue
        counts, edges = np.histogram(finite, bins=BINS)
        found.append(
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
    return tuple(found)
