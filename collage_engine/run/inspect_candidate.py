"""Inspection of a candidate (Relax, TIR, plan), and of a node (weights, nested graphs)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from onnx import AttributeProto, NodeProto

from collage_engine.candidates.open_model import OpenModel
from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of_candidate, relax_module
from collage_engine.model.importer import ImportedModel
from collage_engine.model.opaque import type_name
from collage_engine.planning.explanation import MOST_LISTED
from collage_engine.records.answers import InsideAnswer, Section
from collage_engine.records.candidate import Candidate
from collage_engine.records.operators import is_opaque
from collage_engine.support.errors import CollageError
from collage_engine.wording.amounts import significant

BINS = 40
"""Bins of a histogram of weights; chosen, to fit the panel that shows it."""
COLUMNS = "▁▂▃▄▅▆▇█"
"""Letters for the heights of a histogram's columns."""
ALGORITHM = ("implementation", "kernel", "algorithm", "engine", "schedule")
"""What toolchains call that which computes a step (``Toolchain.inside``)."""


def inspect(open_model: OpenModel, candidate: Candidate | None, node: int | None) -> InsideAnswer:
    """Lower a candidate and describe it, and describe what a node holds.

    Args:
        open_model: The model.
        candidate: The candidate; None: only a node is asked for.
        node: Operator number of the node; None: only a candidate is asked for.
    """
    model = open_model.model
    answer = InsideAnswer() if candidate is None else _inspect_candidate(model, candidate)
    sections = () if node is None else (*_weights(model, node), *_nested_graphs(model, node))
    return msgspec.structs.replace(answer, sections=sections)


def _inspect_candidate(model: ImportedModel, candidate: Candidate) -> InsideAnswer:
    relax = None
    try:
        function = function_of_candidate(model, candidate, "candidate")
        module = relax_module(model, function.nodes, function.inputs, function.outputs)
        # Constants are shown by shape; their values would drown the program.
        relax = module["main"].script(show_meta=False)
        with Compiled(function) as compiled:
            details: dict[str, Any] = compiled.inside()
    except CollageError as error:
        return InsideAnswer(relax=relax, reason=str(error))
    kernels = details.get("kernels", [])
    steps = [details] if "what" in details else details.get("steps", kernels)
    return InsideAnswer(
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


def _weights(model: ImportedModel, operator: int) -> Iterator[Section]:
    """Return statistics of every constant that an operator reads."""
    for index in dict.fromkeys(model.graph.nodes[operator].inputs):
        constant = model.graph.values[index]
        if not constant.constant:
            continue
        values = np.asarray(model.constant(index)).astype(np.float64)
        finite = values[np.isfinite(values)]
        if finite.size:
            counts, _ = np.histogram(finite, bins=BINS)
            heights = counts * (len(COLUMNS) - 1) // counts.max()
            rows = (
                ("shape", f"{'×'.join(map(str, constant.type.shape))} {constant.type.dtype}"),
                ("range", f"{significant(finite.min())} … {significant(finite.max())}"),
                ("mean ± deviation", f"{significant(finite.mean())} ± {significant(finite.std())}"),
                ("zeros", f"{(finite == 0).mean() * 100:.1f} %"),
                ("histogram", "".join(COLUMNS[height] for height in heights)),
            )
            yield f"Weight {constant.name}", rows


def _nested_graphs(model: ImportedModel, operator: int) -> Iterator[Section]:
    """Return the nodes that an opaque operator stands for, and those of branches and bodies."""
    call = model.graph.nodes[operator]
    if not is_opaque(call.op):
        return
    made = {value.onnx_value for value in call.results if value.onnx_value}
    waiting = [
        node
        for node in model.onnx.graph.node
        if node.name in call.onnx_nodes or made & set(node.output)
    ]
    if len(waiting) > 1:
        yield "ONNX nodes that run together", tuple(map(_row, waiting[:MOST_LISTED]))
    for node in waiting:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                graph = attribute.g
                flow = _flow([v.name for v in graph.input], [v.name for v in graph.output])
                yield f"{attribute.name}: {flow}", tuple(map(_row, graph.node[:MOST_LISTED]))
                waiting.extend(graph.node)


def _row(node: NodeProto) -> tuple[str, str]:
    return " ".join(filter(None, (type_name(node), node.name))), _flow(node.input, node.output)


def _flow(inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Return ``a, b → c``: the values that are read and made; one left out is a dash."""
    return " → ".join(", ".join(name or "–" for name in names) for names in (inputs, outputs))
