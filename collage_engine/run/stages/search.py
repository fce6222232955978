"""The step that finds the best covers of what was measured."""

from __future__ import annotations

from collections.abc import Sequence, Set

from collage_engine.planning.infeasible import WithoutCandidates, infeasible_details
from collage_engine.planning.search_inputs import SearchInputs, SearchResult
from collage_engine.records.operators import NodeTitles
from collage_engine.run.task import RunState
from collage_engine.search.problem import Answer
from collage_engine.support.errors import InfeasibleError
from collage_engine.support.text import NAMED, counted
from collage_engine.toolchains.registry import title_of
from collage_engine.wording.sentences import UNDECIDED


def search_covers(state: RunState) -> SearchResult:
    """Search the covers with the least cost.

    Raises:
        InfeasibleError: Measured candidates cover the graph in no way.
    """
    inputs, standings = state.inputs, state.race.standings
    with state.control.stage("search") as report:
        covers = inputs.search()
        if covers.answer.infeasible is not None:
            raise no_cover_error(
                inputs,
                covers.answer,
                state.catalog.without_candidates,
                standings.failures(),
                wrong_models=standings.wrong_models(),
                out_of_time="measure" in state.control.cut_short,
            )
        if not covers.covers:
            raise InfeasibleError(f"no placement was found: {UNDECIDED}", {})
        report.detail = counted(len(covers.covers[0]), "partition")
    return covers


def no_cover_error(
    inputs: SearchInputs,
    answer: Answer,
    without_candidates: WithoutCandidates,
    failures: Sequence[str] = (),
    *,
    wrong_models: Set[str] = frozenset(),
    out_of_time: bool = False,
) -> InfeasibleError:
    """Return the error of a search that found no cover: it says why, and what could be done.

    More time helps only where time was the cause, and every node has a candidate that may still
    turn out to be right.

    Args:
        inputs: The candidates with their costs; those that were wrong in this run or an earlier one
            say why.
        answer: The search's answer.
        without_candidates: Why instances have no candidate for an operator.
        failures: Why placements that were tried before failed.
        wrong_models: Ids of the candidates that were wrong as whole models.
        out_of_time: Whether measuring ended since its time was over.
    """
    details = infeasible_details(inputs.graph, inputs.pins, answer, without_candidates)
    nodes = set(answer.infeasible.nodes if answer.infeasible else ())
    of_nodes = [(c, inputs.costs.cost(c.id)) for c in inputs.candidates if nodes & set(c.nodes)]
    not_wrong = {
        n
        for c, cost in of_nodes
        if cost.state != "invalid" and c.id not in wrong_models
        for n in c.nodes
    }
    invalid = [
        f"{title_of(c.instance.id)}: {cost.reason}"
        for c, cost in of_nodes
        if cost.state == "invalid"
    ]
    reasons = "; ".join(dict.fromkeys([*failures[:NAMED], *invalid[:NAMED]]))
    wrong, more = nodes - not_wrong, f" ({reasons})" if reasons else ""
    text = f"no placement exists: {details['reason']}{more}"
    if out_of_time and nodes and not wrong:
        ran = f"no placement has run with right numbers{more}, and " if reasons else ""
        text = (
            f"{ran}the budget was spent before every node had a measured candidate: give a larger "
            "--budget; what was measured is kept"
        )
    elif reasons and wrong and not details["pins"] and not details["constraints"]:
        names = ", ".join(f"'{name}'" for name in _onnx_names(inputs, wrong))
        text = f"no placement exists: no candidate of {names} runs with right numbers{more}"
    return InfeasibleError(text, details)


def _onnx_names(inputs: SearchInputs, nodes: Set[int]) -> list[str]:
    """Return the ONNX names of the first ``NAMED`` of some operators."""
    calls, titles = inputs.graph.nodes, NodeTitles(inputs.graph.nodes)
    return [
        calls[n].onnx_nodes[0] if calls[n].onnx_nodes else titles[n] for n in sorted(nodes)[:NAMED]
    ]
