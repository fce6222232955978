"""Measuring one sub-graph on every toolchain, because a person wants to know."""

from __future__ import annotations

import msgspec

from collage_engine.candidates.inputs import representative_inputs
from collage_engine.candidates.open_model import Workspace
from collage_engine.control.run_control import RunControl
from collage_engine.partition.call_graph import call_graph
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import invalid
from collage_engine.records.errors import UsageError
from collage_engine.records.settings import RunSettings
from collage_engine.store.keys import KeyMaker
from collage_engine.timing.candidate_timing import Measuring, with_costs
from collage_engine.timing.measurer import group_candidates


def measure_now(
    workspace: Workspace,
    *,
    control: RunControl,
    settings: RunSettings,
    nodes: tuple[int, ...],
    toolchains: tuple[str, ...],
    longer: bool,
) -> list[CandidateRecord]:
    """Candidates over exactly these operators, measured; a toolchain that cannot take one of
    them gets an invalid candidate with the reason. Raises UsageError when they are not convex."""
    graph = workspace.model.graph
    operators = tuple(sorted(set(nodes)))
    if not operators or operators[0] < 0 or operators[-1] >= len(graph.operators):
        raise UsageError("measure.now needs operators of this model")
    calls = call_graph(graph)
    wanted = sum(1 << operator for operator in operators)
    between = 0
    upstream = 0
    for operator in operators:
        between |= calls.downstream[operator]
        upstream |= calls.upstream[operator]
    holes = between & upstream & ~wanted
    if holes:
        hole = graph.nodes[graph.operators[(holes & -holes).bit_length() - 1]]
        raise UsageError(
            f"these nodes cannot be one partition: a path leaves them through {hole.op}"
            f"{' (' + hole.onnx_nodes[0] + ')' if hole.onnx_nodes else ''} and comes back"
        )
    menu = workspace.menu(settings)
    makers = KeyMaker(graph, workspace.model.constant)
    records, refused = [], []
    for offer in menu.offers:
        if toolchains and offer.instance.toolchain not in toolchains:
            continue
        reason = next(
            (
                f"{graph.nodes[graph.operators[o]].op}: {why}"
                for o in operators
                if (why := offer.supports(graph.operators[o])) is not None
            ),
            None,
        )
        for takes, gives in offer.borders(graph, operators):
            record = make_candidate(
                graph, offer.instance, operators, rule="asked for", takes=takes, gives=gives
            )
            if reason is None:
                key = menu.keys.key(makers.form_of(record), offer.instance)
                records.append(msgspec.structs.replace(record, key=key))
            elif not takes and not gives:
                refused.append(msgspec.structs.replace(record, key="", cost=invalid(reason)))
    if records:
        inputs = representative_inputs(workspace.model, settings)
        with Measuring(workspace, menu, settings, inputs, control) as measuring:
            outcome = measuring.measure_groups(group_candidates(records), None, again=longer)
        records = with_costs(records, outcome.costs)
        known = {record.id for record in menu.records}
        menu.records = [*menu.records, *(r for r in records if r.id not in known)]
    return [*records, *refused]
