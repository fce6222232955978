"""The stage that measures candidates: what is needed, what hangs on little, what touches."""

from __future__ import annotations

import random
import time

import msgspec

from collage_engine.candidates.coalesce import ROUNDS, merged_candidates
from collage_engine.candidates.open_model import Menu, threads_of
from collage_engine.control.budget import Budget
from collage_engine.partition.call_graph import call_graph
from collage_engine.planning.problem import DRIFT_CONSTANT, RUNNERS_UP
from collage_engine.records.precision import is_reduced
from collage_engine.records.results import RunOutcome
from collage_engine.run.context import RunState
from collage_engine.run.stages.needed import Needed
from collage_engine.search.api import k_best, reuse, solve
from collage_engine.store.drift import drift, enough, learn, recall
from collage_engine.timing.candidate_timing import Measuring, with_costs
from collage_engine.timing.measurer import group_candidates
from collage_engine.timing.precompile import make_ready
from collage_engine.timing.timing_costs import repeats_apart
from collage_engine.transitions.transitions import transition_constants
from collage_engine.trials.baselines import baselines

SETTLED = 12
SETTLING_S = 20.0
"""Candidates measured again because much hangs on them, and the time for it."""
SITTING_FROM_S = 20.0
"""A run that has measured so long can afford another process, whose costs tell how much sittings
differ,"""
SITTING = 16
"""and there measures this many again, the rest of them drawn by lot."""
SETTLED_BELOW = 0.002
"""Not worth it when better knowledge would gain less than this share of the cover's cost."""


def measure_candidates(state: RunState, menu: Menu, measuring: Measuring) -> None:
    """Give the state's records their costs and its constants what hand-overs take."""
    with state.control.stage("measure") as report:
        total = len({record.key for record in state.records})
        known = recall(state.workspace.store, threads_of(state.settings))
        state.constants[DRIFT_CONSTANT] = drift(known, state.drift)
        state.constants |= transition_constants(
            state.workspace,
            menu,
            state.settings,
            state.control,
            lambda now: report.progress(0, total, now),
        )
        if state.settings.budget_s > 0:
            make_ready(
                state.workspace,
                menu,
                state.records,
                lambda now: report.progress(0, total, now),
                state.control,
            )
        budget = state.budget = Budget(state.settings.budget_s)
        left_out = None
        if state.settings.measure == "all":
            state.records = measuring.measure(budget, report)
        else:
            measuring.begin(state.records)
            full = [r for r in state.records if not is_reduced(r.instance)]
            if len(full) < len(state.records):
                # What is needed without the rest as well: the rest may break the tolerance.
                narrow = [r for r in state.records if is_reduced(r.instance)]
                state.records = full
                _measure_needed(state, menu, measuring, Budget(budget.seconds / 2))
                state.records = [*state.records, *narrow]
            left_out = _measure_needed(state, menu, measuring, budget)
        # In this order: what is offered as one follows from the costs that are stored, so a
        # run from the store offers the same and finds it there.
        if _settle(state, measuring, budget) and state.settings.measure != "all":
            left_out = _measure_needed(state, menu, measuring, budget, check=False)
        _coalesce(state, menu, measuring, budget)
        if left_out:
            state.control.log(left_out)
        counts = measuring.counts
        report.detail = (
            f"{counts.measured} measured, {counts.from_store} from the store, "
            f"{counts.invalid} invalid, {counts.skipped} left unmeasured"
        )
        state.control.emit(RunOutcome(candidates=state.records, constants=state.constants))


def _measure_needed(
    state: RunState, menu: Menu, measuring: Measuring, budget: Budget, check: bool = True
) -> str | None:
    """Measure what a better cover could contain, and what the baselines consist of; what was
    left out, in words. ``check``: hold the assumptions against a few measurements as well."""
    calls = call_graph(state.model.graph)
    needed = Needed(
        state.model.graph,
        state.records,
        state.constants,
        state.problem,
        measuring,
        budget.deadline,
        keep=[part for r in baselines(calls, menu, state.settings, 0) for part in r.cover],
    )
    # An earlier run, or this one, that measured anything has checked them already.
    first = not any(record.cost.state == "measured" for record in state.records)
    state.records = needed.measure(check=check and first)
    measuring.counts = msgspec.structs.replace(
        measuring.counts, proven=len(needed.proven), assumed=len(needed.assumed)
    )
    return needed.words()


def _settle(state: RunState, measuring: Measuring, budget: Budget) -> bool:
    """Spend a little of what is left on the candidates whose exact cost matters most; whether
    any was measured again.

    Only in a run that measures at all: from the store alone, nothing is measured anew.
    """
    if budget.spent or not measuring.counts.measured:
        return False
    store, threads = state.workspace.store, threads_of(state.settings)
    known = recall(store, threads)
    apart = budget.seconds - budget.left >= SITTING_FROM_S
    # More repeats in the same process tell nothing of what another one would say.
    wanted = _unsettled(state, None if apart else 0.0)
    apart = apart and (bool(wanted) or not enough(known))
    if apart:
        others = sorted(r.id for r in state.records if r.cost.usable and r.id not in wanted)
        random.Random(len(others)).shuffle(others)
        wanted |= set(others[: max(0, SITTING - len(wanted))])
    if not wanted:
        return False
    groups = group_candidates([r for r in state.records if r.id in wanted])
    deadline = min(budget.deadline, time.monotonic() + SETTLING_S)
    before = {r.key: r.cost for group in groups for r in group.candidates}
    costs = measuring.again(groups, deadline, renew=apart)
    if apart:
        twice = [
            two for key, old in before.items() if (two := repeats_apart(old, costs.get(key, old)))
        ]
        state.constants[DRIFT_CONSTANT] = drift(learn(store, threads, twice), state.drift)
    state.records = with_costs(state.records, costs)
    return True


def _unsettled(state: RunState, drift: float | None) -> set[str]:
    """The few candidates whose exact cost matters most; none where it matters little. ``drift``:
    between sittings, as far as measuring again resolves it; None: the problem's."""
    problem = state.problem()
    searched = reuse(problem, None)
    answer = solve(problem, previous=searched, with_bounds=False)
    if answer.infeasible is not None or answer.cost_us is None:
        return set()
    unsure = state.doubt(problem, answer, searched, drift)
    if unsure.loss_us < SETTLED_BELOW * answer.cost_us:
        return set()
    return {str(name) for name, gain in unsure.worth_measuring[:SETTLED] if gain > 0}


def _coalesce(state: RunState, menu: Menu, measuring: Measuring, budget: Budget) -> None:
    """Offer what touches in the best covers as one partition, measured."""
    for _ in range(ROUNDS):
        if budget.spent:
            return
        problem = state.problem()
        covers = [contender.cover for contender in k_best(problem, RUNNERS_UP + 1)]
        merged = merged_candidates(state.model, menu, problem, covers)
        if not merged:
            return
        stored = state.workspace.with_stored_costs(merged)
        state.control.emit(RunOutcome(candidates=[*state.records, *stored]))
        state.records = [*state.records, *measuring.add(stored, budget.deadline)]
