"""Says of a run what tables of several runs, such as that of shapes, say of each."""

from __future__ import annotations

from collections import Counter

from collage_engine.records.graph import GraphRecord
from collage_engine.records.placement import Baseline, Run
from collage_engine.records.shapes import ShapeChoice, ShapeRow, items_of


def inputs_of(graph: GraphRecord) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all inputs of a graph, by name."""
    return {value.name: value.type.shape for value in graph.parameters}


def toolchains_of(run: Run) -> tuple[str, ...]:
    """Name the toolchains of a run's placement, the one with the most operators first."""
    nodes: Counter[str] = Counter()
    for part in run.placement.partitions if run.placement else ():
        nodes[part.toolchain] += max(1, part.size)
    return tuple(name for name, _ in nodes.most_common())


def best_alone(run: Run) -> Baseline | None:
    """Return the fastest toolchain that ran the whole model alone and may be deployed.

    It is None where none did.
    """
    alone = [
        base
        for base in run.baselines
        if base.kind == "whole-model" and base.measured_us is not None and base.barred is None
    ]
    return min(alone, key=lambda base: base.measured_us or 0.0, default=None)


def shape_row(choice: ShapeChoice, graph: GraphRecord, run: Run) -> ShapeRow:
    """Return the line of the table of shapes about one run.

    Args:
        choice: The shape, as the user asked for it.
        graph: The model's graph at this shape.
        run: The run at this shape.
    """
    placement = run.placement
    latency = placement.measured_us if placement is not None else None
    best = best_alone(run)
    inputs = inputs_of(graph)
    items = items_of(inputs)
    return ShapeRow(
        choice=choice,
        inputs=inputs,
        run=run.id,
        latency_us=latency,
        spread_us=placement.spread_us if placement is not None else None,
        items=items,
        items_per_s=None if not latency else items * 1e6 / latency,
        toolchains=toolchains_of(run),
        partitions=len(placement.partitions) if placement is not None else 0,
        best_single=best.name if best is not None else "",
        best_single_us=best.measured_us if best is not None else None,
        distinct=run.candidates.distinct,
        measured=run.candidates.measured,
        from_store=run.candidates.from_store,
    )
