"""The candidates of an earlier run's placement, which later menus may not have."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import Candidate
from collage_engine.records.numbering import OperatorNumber
from collage_engine.records.placement import Run
from collage_engine.records.toolchain import ToolchainInstance


def candidates_of_run(graph: DataflowGraph, run: Run) -> tuple[Candidate, ...]:
    """Return the candidates of a run's placement, made anew from its document.

    Args:
        graph: The model's graph.
        run: The run's document, which has a placement.

    Returns:
        The candidates in the order in which they run, without measurement keys.
    """
    assert run.placement is not None
    return tuple(
        make_candidate(
            graph,
            ToolchainInstance(
                toolchain=part.toolchain,
                config=tuple(sorted(part.config.items())),
                threads=1 if part.architecture else run.threads,
                precision=part.precision,
                device=part.device,
                architecture=part.architecture,
                tuning=part.tuning,
            ),
            tuple(map(OperatorNumber, part.nodes)),
            rule="earlier run",
            takes=part.takes,
            gives=part.gives,
        )
        for part in run.placement.partitions
    )
