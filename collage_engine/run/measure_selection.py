"""Measures one sub-graph on every toolchain, on a person's request."""

from __future__ import annotations

import math
from functools import partial

from collage_engine.candidates.catalog import with_keys
from collage_engine.candidates.inputs import representative_inputs
from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.run_control import RunControl
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import (
    Candidate,
    CandidateRecord,
    CostTable,
    invalid,
    records_of,
)
from collage_engine.records.graph import OperatorNumber, members, operator_set
from collage_engine.records.protocol import Job, MeasureNow
from collage_engine.support.errors import UsageError
from collage_engine.timing.measurer import Measuring, group_candidates
from collage_engine.wording.sentences import refusal_text


def measure_selection(
    open_model: OpenModel, job: Job[MeasureNow], control: RunControl
) -> list[CandidateRecord]:
    """Measure the candidates over the ONNX nodes of some operators.

    Args:
        open_model: The model.
        job: The operators, the toolchains, and the settings of the last run.
        control: Takes progress; cancels the measuring.

    Returns:
        The candidates with their costs. A toolchain that cannot take one of the operators has an
        invalid candidate with the reason.

    Raises:
        UsageError: The operators do not exist or cannot be one partition.
    """
    nodes, settings = job.request.nodes, job.settings
    graph = open_model.model.graph
    if not nodes or min(nodes) < 0 or max(nodes) >= len(graph):
        raise UsageError("measure.now needs operators of this model")
    wanted = graph.complete(operator_set(map(OperatorNumber, nodes)))
    if not graph.convex(wanted):
        raise UsageError(
            "these nodes cannot be one partition: a path leaves them and comes back through another"
        )
    operators = tuple(members(wanted))
    catalog = open_model.catalog(settings, faults=control.faults)
    made: list[Candidate] = []
    refused: list[CandidateRecord] = []
    for source in catalog.sources:
        if job.request.toolchains and source.instance.toolchain not in job.request.toolchains:
            continue
        make = partial(make_candidate, graph, source.instance, operators, rule="asked for")
        reasons = [r for number in operators if (r := source.refusal(graph, number)) is not None]
        if reasons:
            one, cost = make(), invalid(refusal_text(reasons[0]))
            refused += records_of([one], CostTable({one.id: cost}))
        else:
            made += (make(takes=t, gives=g) for t, g in source.borders(graph, operators))
    supported, costs = with_keys(open_model.model, catalog.keys, made), CostTable()
    if supported:
        inputs = representative_inputs(open_model.model, settings)
        with Measuring(open_model, catalog, settings, inputs, control) as measuring:
            measuring.begin(supported, costs)
            groups, again = group_candidates(supported), job.request.longer
            costs = costs.with_measured(supported, measuring.measure_batch(groups, math.inf, again))
        open_model.extend_catalog(settings, supported, control.faults)
    return [*records_of(supported, costs), *refused]
