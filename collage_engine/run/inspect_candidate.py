"""Inspection of a candidate: Relax, TIR, and the plan of a library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collage_engine.candidates.open_model import OpenModel
from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of, relax_module
from collage_engine.records.answers import (
    InsideAnswer,
)
from collage_engine.records.candidate import Candidate
from collage_engine.support.errors import CollageError

ALGORITHM = ("implementation", "kernel", "algorithm", "engine", "schedule")
"""What toolchains call that which computes a step (``capabilities.Inspectable``)."""


def inspect_candidate(open_model: OpenModel, candidate: Candidate) -> InsideAnswer:
    """Lower a candidate and describe it.

    Args:
        open_model: The model.
        candidate: The candidate.
    """
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
        return InsideAnswer(reason=str(error))
    try:
        with compile_function(function) as compiled:
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
