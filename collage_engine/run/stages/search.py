"""The step that finds the best covers of what was measured."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from collage_engine.candidates.menu import Menu
from collage_engine.control.run_control import RunControl
from collage_engine.drawing.palette import toolchain_title
from collage_engine.planning.infeasible import WithoutCandidates, infeasible_details
from collage_engine.records.counted import counted
from collage_engine.records.errors import InfeasibleError
from collage_engine.records.placement import Placement
from collage_engine.run.problem_data import ProblemData
from collage_engine.search.api import reuse, solve
from collage_engine.search.problem import Answer
from collage_engine.trials.race import Race
from collage_engine.wording import stages as say
from collage_engine.wording.constraints import UNDECIDED

REASONS = 3
"""Reasons of each kind that a sentence gives; chosen."""


@dataclass(frozen=True)
class SearchResult:
    """The search's answer and the best covers."""

    answer: Answer
    placements: tuple[Placement, ...]
    """Best first."""


def search_covers(menu: Menu, data: ProblemData, race: Race, control: RunControl) -> SearchResult:
    """Search the covers with the least cost.

    Raises:
        InfeasibleError: Measured candidates cover the graph in no way.
    """
    with control.stage("search") as report:
        failures = race.failures()
        result = find_covers(data, menu.without_candidates, failures)
        report.detail = counted(len(result.placements[0].partitions), "partition")
    return result


def find_covers(
    data: ProblemData, without_candidates: WithoutCandidates, failures: Sequence[str] = ()
) -> SearchResult:
    """Find the best covers, best first.

    Args:
        data: The candidates with their costs.
        without_candidates: Why instances have no candidate for an operator; for the error.
        failures: Why placements that were tried before failed; for the error.

    Raises:
        InfeasibleError: Measured candidates cover the graph in no way.
    """
    problem = data.problem()
    search = reuse(problem, None)
    answer = solve(problem, previous=search)
    if answer.infeasible is None and answer.cost_us is None:
        raise InfeasibleError(f"no placement was found: {UNDECIDED}", {})
    if answer.infeasible is not None:
        raise _missing_costs(data, answer, without_candidates, failures)
    placements = data.best_placements(problem, search)
    return SearchResult(answer=answer, placements=tuple(placements))


def _missing_costs(
    data: ProblemData,
    answer: Answer,
    without_candidates: WithoutCandidates,
    failures: Sequence[str],
) -> InfeasibleError:
    """Return the error of a search without costs: it says why, and what could be done.

    More time helps only where every node has a candidate that may still turn out to be right.
    """
    details = infeasible_details(data.graph, data.pins, answer, without_candidates)
    nodes = set(answer.infeasible.nodes if answer.infeasible else ())
    costs = {c.id: data.costs.cost(c.id) for c in data.candidates}
    of_nodes = [c for c in data.candidates if nodes & set(c.nodes)]
    open_nodes = {n for c in of_nodes if costs[c.id].state != "invalid" for n in c.nodes}
    invalid = [
        f"{toolchain_title(c.instance.id)}: {costs[c.id].reason}"
        for c in of_nodes
        if costs[c.id].state == "invalid"
    ]
    reasons = "; ".join(dict.fromkeys([*failures[:REASONS], *invalid[:REASONS]]))
    if nodes and nodes <= open_nodes:
        sentence = say.BUDGET_BEFORE_A_COVER_BECAUSE if reasons else say.BUDGET_BEFORE_A_COVER
        return InfeasibleError(sentence.format(reasons=reasons), details)
    if invalid and not details["pins"] and not details["constraints"]:
        names = ", ".join(f"'{name}'" for name in _onnx_names(data, nodes - open_nodes))
        return InfeasibleError(say.NOTHING_RIGHT_FOR.format(nodes=names, reasons=reasons), details)
    more = f" ({reasons})" if reasons else ""
    return InfeasibleError(f"no placement exists: {details['reason']}{more}", details)


def _onnx_names(data: ProblemData, nodes: Set[int]) -> list[str]:
    """Return the ONNX names of the first ``REASONS`` of some operators."""
    calls = [node for node in data.graph.nodes if node.form == "call"]
    return [
        calls[n].onnx_nodes[0] if calls[n].onnx_nodes else calls[n].op
        for n in sorted(nodes)[:REASONS]
    ]
