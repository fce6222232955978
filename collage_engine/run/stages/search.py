"""The stage that finds the best covers of what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collage_engine.candidates.menu import Menu
from collage_engine.control.run_control import RunControl
from collage_engine.planning.infeasible import infeasible_details
from collage_engine.records.counted import counted
from collage_engine.records.errors import InfeasibleError
from collage_engine.records.placement import Placement
from collage_engine.run.problem_data import ProblemData
from collage_engine.search.api import reuse, solve
from collage_engine.search.problem import Answer
from collage_engine.wording import stages as say
from collage_engine.wording.constraints import UNDECIDED

WithoutCandidates = Mapping[str, Mapping[int, str]]
"""By instance id, the operators that it has no candidate for, with the reason."""


@dataclass(frozen=True, kw_only=True)
class SearchInputs:
    """The candidates with their costs."""

    menu: Menu
    data: ProblemData


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The search's answer and the best covers."""

    answer: Answer
    placements: tuple[Placement, ...]
    """Best first."""


class SearchCovers:
    """Searches the covers with the least cost."""

    name = "search"
    inputs = SearchInputs

    def run(self, inputs: SearchInputs, control: RunControl) -> SearchResult:
        """Search on the costs at hand.

        Raises:
            InfeasibleError: Measured candidates cover the graph in no way.
        """
        with control.stage("search") as report:
            result = find_covers(inputs.data, inputs.menu.without_candidates)
            report.detail = counted(len(result.placements[0].partitions), "partition")
        return result


def find_covers(data: ProblemData, without_candidates: WithoutCandidates) -> SearchResult:
    """Find the best covers, best first.

    Args:
        data: The candidates with their costs.
        without_candidates: Why instances have no candidate for an operator; for the error.

    Raises:
        InfeasibleError: Measured candidates cover the graph in no way.
    """
    problem = data.problem()
    search = reuse(problem, None)
    answer = solve(problem, previous=search)
    if answer.infeasible is None and answer.cost_us is None:
        raise InfeasibleError(f"no placement was found: {UNDECIDED}", {})
    if answer.infeasible is not None:
        raise _missing_costs(data, answer, without_candidates)
    placements = data.best_placements(problem, search)
    return SearchResult(answer=answer, placements=tuple(placements))


def _missing_costs(
    data: ProblemData, answer: Answer, without_candidates: WithoutCandidates
) -> InfeasibleError:
    """Return the error of a search without costs: it says which nodes lack a cost."""
    details = infeasible_details(data.graph, data.pins, answer, without_candidates)
    nodes = set(answer.infeasible.nodes if answer.infeasible else ())
    costs = {c.id: data.costs.cost(c.id) for c in data.candidates}
    reasons = [
        f"{c.instance.id}: {costs[c.id].reason}"
        for c in data.candidates
        if costs[c.id].state == "invalid" and nodes & set(c.nodes)
    ]
    if any(cost.state == "unknown" for cost in costs.values()) and not reasons:
        return InfeasibleError(
            say.BUDGET_BEFORE_A_COVER,
            details,
        )
    more = f" ({'; '.join(reasons[:3])})" if reasons else ""
    return InfeasibleError(f"no placement exists: {details['reason']}{more}", details)
