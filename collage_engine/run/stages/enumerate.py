"""The stage that finds the candidates, and refuses at once what cannot be placed."""

from __future__ import annotations

import msgspec

from collage_engine.candidates.host_offers import pinned_to_host
from collage_engine.candidates.open_model import Menu
from collage_engine.candidates.precision import missing
from collage_engine.candidates.runtime_facts import runtime_facts
from collage_engine.planning.infeasible import raise_infeasible
from collage_engine.planning.problem import make_problem
from collage_engine.records.copies import FREE
from collage_engine.records.counted import counted
from collage_engine.records.results import RunOutcome
from collage_engine.run.context import RunState
from collage_engine.search.api import solve
from collage_engine.trials.baselines import check_placements


def enumerate_candidates(state: RunState) -> Menu:
    """What every toolchain offers for the model, with the costs that the store has.

    Raises InfeasibleError, before anything is measured, when the pins contradict each other or a
    node has no toolchain; CollageError for the user's own placements that name what is not there.
    """
    with state.control.stage("enumerate") as report:
        report.progress(0, 1, "toolchains; the first time, their runtimes are compiled")
        menu = state.workspace.menu(state.settings, pinned_to_host(state.pins))
        state.records = menu.records
        distinct = len({record.key for record in menu.records})
        report.detail = f"{counted(len(menu.records), 'candidate')}, {distinct} distinct"
        state.control.emit(
            RunOutcome(
                candidates=menu.records, not_offered=menu.not_offered, toolchains=menu.states
            )
        )
        names = [toolchain.name for toolchain in menu.states]
        check_placements(state.graph, state.model.record.folded, state.settings, names)
        offered = dict.fromkeys(r for offer in menu.offers for r in offer.instance.runtimes)
        state.constants = runtime_facts(tuple(offered), state.model.record.weights_bytes)
        _refuse_what_cannot_be(state, menu)
    lacking = missing(state.settings.precision, [offer.instance for offer in menu.offers])
    if lacking:
        state.control.warn(lacking)
    return menu


def _refuse_what_cannot_be(state: RunState, menu: Menu) -> None:
    """With every candidate free of charge, is there a cover at all?"""
    free = [
        msgspec.structs.replace(
            record,
            cost=msgspec.structs.replace(record.cost, state="measured", median_us=0.0),
        )
        for record in state.records
        if record.cost.state != "invalid"
    ]
    constants = state.constants | FREE
    answer = solve(make_problem(state.graph, free, state.pins, constants, state.settings))
    if answer.infeasible is not None:
        raise_infeasible(state.graph, state.pins, answer, menu.not_offered)
