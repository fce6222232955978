"""What the tables of several runs say of one of them."""

from __future__ import annotations

from collections import Counter

from collage_engine.records.placement import Baseline, Run
from collage_engine.service.engine import Engine


def inputs_of(engine: Engine, handle: str) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs of an open document, by name."""
    graph = engine.document(handle).document.graph
    return {
        name: tuple(graph.nodes[node].types[0].shape)
        for name, node in zip(graph.input_names, graph.inputs, strict=True)
    }


def toolchains_of(run: Run) -> tuple[str, ...]:
    """The toolchains of a run's placement, the one with the most operators first."""
    nodes: Counter[str] = Counter()
    for part in run.placement.partitions if run.placement is not None else ():
        nodes[part.toolchain] += max(1, len(part.nodes))
    return tuple(name for name, _ in nodes.most_common())


def best_alone(run: Run) -> Baseline | None:
    """The fastest toolchain that ran the whole model alone and may be deployed; None: none did."""
    alone = [
        base
        for base in run.baselines
        if base.kind == "whole-model" and base.measured_us is not None and base.barred is None
    ]
    return min(alone, key=lambda base: base.measured_us or 0.0, default=None)
