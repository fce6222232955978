"""Runs composites of quantised models one by one on true values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.reference import TrueValues
from collage_engine.model.importer import ImportedModel
from collage_engine.partition import quantized
from collage_engine.partition.patterns import Match
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.capabilities import LowersToTir
from tests.support.toolchain_cases import default_instance


@dataclass(frozen=True)
class Outcome:
    """One composite on a toolchain: how many steps (or what share of the largest value) apart."""

    kind: str
    name: str
    steps: float
    share: float
    """Of the elements that differ at all."""
    inside: dict[str, Any]


def function_for(
    model: ImportedModel, nodes: int, instance: ToolchainInstance, symbol: str
) -> Function:
    """Makes a function of a set of calls."""
    inputs, outputs = model.graph.boundary(nodes)
    return Function(symbol, model, model.graph, nodes, inputs, outputs, instance)


def composites(model: ImportedModel) -> list[Match]:
    """Returns the model's disjoint composites, in order."""
    return list(quantized.within(model.graph, model.graph.everything).values())


def true_values(
    model: ImportedModel, folder: Path, feeds: dict[str, np.ndarray] | None = None
) -> TrueValues:
    return TrueValues.record(model, feeds or model.random_inputs(3), folder)


def outcome(
    model: ImportedModel,
    truth: TrueValues,
    found: Match,
    toolchain: Any,
    number: int = 0,
) -> Outcome:
    """Compiles a composite by a toolchain and runs it on its true inputs."""
    instance = default_instance(toolchain)
    function = function_for(model, found.nodes, instance, f"composite_{number}")
    compiled = Compiled(function)
    try:
        (result,) = compiled.run([np.array(v) for v in truth.inputs_of(function)])
    finally:
        compiled.close()
    (true,) = truth.outputs_of(function)
    apart = np.abs(result.astype(np.float64) - true)
    steps = apart.max(initial=0.0)
    if true.dtype.kind == "f":
        steps /= max(np.abs(true).max(initial=0.0), 1e-30)
    inside = {}
    if not isinstance(toolchain, LowersToTir):
        inside = toolchain.inside(toolchain.compile(function))
    anchor = found.get("anchor")
    node = model.graph.nodes[found.root if anchor is None else anchor]
    return Outcome(
        found.kind, node.name or node.op, float(steps), float((apart > 0).mean()), inside
    )
