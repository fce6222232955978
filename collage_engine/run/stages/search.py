"""The stage that finds the best covers of what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from collage_engine.planning.infeasible import infeasible_details
from collage_engine.planning.problem import UNDECIDED, best_placements
from collage_engine.records.counted import counted
from collage_engine.records.errors import InfeasibleError
from collage_engine.records.placement import Placement
from collage_engine.search.api import reuse, solve
from collage_engine.search.problem import Answer

if TYPE_CHECKING:
    from collage_engine.candidates.open_model import Menu
    from collage_engine.run.context import RunState


def search_covers(state: RunState, menu: Menu) -> tuple[Answer, list[Placement]]:
    """The search's answer, and the best covers, best first; the first one's partitions say how
    sure they are.

    Raises InfeasibleError when measured candidates cover the graph in no way.
    """
    with state.control.stage("search") as report:
        answer, placements = find_covers(state, menu)
        count = len(placements[0].partitions)
        report.detail = counted(count, "partition")
    return answer, placements


def find_covers(state: RunState, menu: Menu) -> tuple[Answer, list[Placement]]:
    """What ``search_covers`` returns, as a part of another stage."""
    problem = state.problem()
    searched = reuse(problem, None)
    answer = solve(problem, previous=searched)
    if answer.infeasible is None and answer.cost_us is None:
        raise InfeasibleError(f"no placement was found: {UNDECIDED}", {})
    if answer.infeasible is not None:
        _explain_missing_costs(state, menu, answer)
    placements = best_placements(state.graph, state.by_id(), problem, searched, state.settings)
    right = state.doubt(problem, answer, searched).probability
    placements[0] = msgspec.structs.replace(
        placements[0],
        partitions=tuple(
            msgspec.structs.replace(part, right=right.get(part.candidate))
            for part in placements[0].partitions
        ),
    )
    return answer, placements


def _explain_missing_costs(state: RunState, menu: Menu, answer: Answer) -> None:
    """A cover exists, but not one of measured candidates: say which nodes lack a cost."""
    details = infeasible_details(state.graph, state.pins, answer, menu.not_offered)
    nodes = answer.infeasible.nodes if answer.infeasible else ()
    reasons = [
        f"{record.instance.id}: {record.cost.reason}"
        for record in state.records
        if record.cost.state == "invalid" and set(nodes) & set(record.nodes)
    ]
    if any(record.cost.state == "unknown" for record in state.records) and not reasons:
        raise InfeasibleError(
            "the budget was spent before every node had a measured candidate: "
            "give a larger --budget; what was measured is kept",
            details,
        )
    more = f" ({'; '.join(reasons[:3])})" if reasons else ""
    raise InfeasibleError(f"no placement exists: {details['reason']}{more}", details)
