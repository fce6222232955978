"""Makes candidates with costs for tests that need no measuring."""

from __future__ import annotations

from typing import Any

import msgspec

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import (
    Candidate,
    CandidateRecord,
    Cost,
    CostTable,
    records_of,
    table_of,
)
from collage_engine.records.pin import Pin
from collage_engine.records.settings import RunSettings


def row(candidate: Candidate, cost: Cost, **changes: Any) -> CandidateRecord:
    """Returns a candidate joined with a cost, as documents hold it."""
    (joined,) = records_of([candidate], CostTable({candidate.id: cost}))
    return msgspec.structs.replace(joined, **changes)


def candidate_of(record: CandidateRecord) -> Candidate:
    """Returns the candidate that a row is about, without its costs."""
    return Candidate(**{name: getattr(record, name) for name in Candidate.__struct_fields__})


def inputs_of(
    graph: DataflowGraph,
    rows: list[CandidateRecord],
    pins: tuple[Pin, ...] = (),
    settings: RunSettings | None = None,
) -> SearchInputs:
    """Returns what a run knows between two stages when these are its candidates and their costs."""
    return SearchInputs(
        graph=graph.record,
        candidates=tuple(map(candidate_of, rows)),
        costs=table_of(rows),
        constants={},
        pins=pins,
        settings=settings or RunSettings(),
    )
