"""What sessions differ by: kept in the store, used for ties, probabilities and stated intervals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from collage_engine.control.budget import Budget
from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.search_problem import DRIFT_CONSTANT
from collage_engine.records.cost import Cost
from collage_engine.records.cost_table import CostTable
from collage_engine.records.errors import UsageError
from collage_engine.records.placement import CandidateCounts
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.stages.measure import SECOND_PROCESS_FROM_S, learn_drift
from collage_engine.search.api import Search, solve
from collage_engine.search.explain import explain_node
from collage_engine.search.problem_json import problem_from
from collage_engine.search.run_to_run_drift import BUSY_DRIFT, required_drift
from collage_engine.search.uncertainty import choice_probability, ties
from collage_engine.store.drift import (
    ENOUGH_CANDIDATES,
    ENOUGH_RUNS,
    KEPT,
    drift,
    enough,
    learn,
    recall,
)
from collage_engine.store.store import Store
from collage_engine.timing.measurer import CandidateGroup
from collage_engine.timing.protocol import Timing
from collage_engine.timing.timing_costs import cost_of, merged
from tests.support.candidates import data_of, row
from tests.support.graphs import chain

STEADY = (100.0,) * 9


def moved(share: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return STEADY, tuple(one * (1 + share) for one in STEADY)


def test_what_is_missing_is_the_drift_that_would_have_held_it() -> None:
    assert required_drift(*moved(0.0)) == 0.0
    assert required_drift(*moved(0.07)) == pytest.approx(0.07)
    scattered = [90.0, 95.0, 100.0, 105.0, 110.0, 97.0, 103.0]
    assert required_drift(scattered, [104.0]) == 0.0  # their own scatter explains it


def test_the_store_remembers_sittings_by_threads_and_the_latest_ones(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    try:
        assert recall(store, 1) == []
        for number in range(KEPT + 3):
            learn(store, 1, [moved(number / 100)] * 2)
        known = recall(store, 1)
        assert len(known) == KEPT and known[-1] == pytest.approx([(KEPT + 2) / 100] * 2)
        assert recall(store, 2) == [] and learn(store, 1, []) == known
    finally:
        store.close()


def test_little_knowledge_widens_the_default_and_much_replaces_it() -> None:
    few = [[0.01] * 10, [0.02] * 10]
    assert drift([], 0.2) == 0.2
    assert not enough(few) and drift(few, 0.2) == 0.2
    assert drift([[0.4] * 10], 0.2) == pytest.approx(0.4)
    assert not enough([[0.01] * 100]), "however many, they are of one session"
    much = [[0.01] * (ENOUGH_CANDIDATES // ENOUGH_RUNS + 1) for _ in range(ENOUGH_RUNS)]
    assert enough(much) and drift(much, 0.2) == pytest.approx(0.01)
    assert drift(much, BUSY_DRIFT) == BUSY_DRIFT, "quiet days say nothing of a busy one"


def contenders(theirs: float, drift: float, *, apart: bool) -> dict[str, Any]:
    """Two covers: one candidate against another on the same nodes, or against two on parts."""
    candidates = [{"id": "a", "nodes": [0, 1], "toolchain": "a", "cost_us": 100.0, "spread_us": 1}]
    parts = [[0], [1]] if apart else [[0, 1]]
    candidates += [
        {
            "id": f"b{k}",
            "nodes": nodes,
            "toolchain": "b",
            "cost_us": theirs / len(parts),
            "spread_us": 1,
        }
        for k, nodes in enumerate(parts)
    ]
    return {
        "nodes": [{"id": 0}, {"id": 1, "inputs": [0]}],
        "candidates": candidates,
        "drift": drift,
    }


def test_drift_makes_ties_and_less_of_it_where_contenders_were_timed_together() -> None:
    def tied(theirs: float, drift: float, apart: bool) -> bool:
        problem = problem_from(contenders(theirs, drift, apart=apart))
        return bool(ties(problem, solve(problem)))

    assert not tied(110.0, 0.0, apart=False) and tied(101.5, 0.0, apart=False)
    assert tied(110.0, 0.2, apart=False) and tied(110.0, 0.2, apart=True)
    # 25 % apart: two sessions may differ so much, two contenders in the same rounds hardly.
    assert tied(125.0, 0.2, apart=True) and not tied(125.0, 0.2, apart=False)
    problem = problem_from(contenders(110.0, 0.2, apart=False))
    told = explain_node(problem, solve(problem), 0)
    assert any("within the run-to-run drift: a tie" in line for line in told.text)


def test_drift_lowers_the_probability_of_a_choice_and_less_within_the_same_rounds() -> None:
    rng = random.Random(1)

    def right(apart: bool, share: float) -> float:
        problem = problem_from(contenders(108.0, share, apart=apart))
        repeats = {
            c.id: [(c.cost_us or 0.0) * rng.uniform(0.999, 1.001) for _ in range(15)]
            for c in problem.candidates
        }
        return choice_probability(problem, solve(problem), repeats=repeats, draws=400)["a"]

    assert right(True, 0.0) == right(False, 0.0) == 1.0
    assert 0.5 < right(True, 0.2) < right(False, 0.2) < 1.0


def test_drift_counts_where_only_a_spread_is_known() -> None:
    def right(share: float) -> float:
        data = contenders(108.0, share, apart=True)
        for candidate in data["candidates"]:  # type: ignore[attr-defined]
            candidate["spread_us"] = 0.1
        problem = problem_from(data)
        return choice_probability(problem, solve(problem), draws=400)["a"]

    assert right(0.0) == 1.0 and 0.5 < right(0.2) < 0.95


def test_a_drift_is_a_share() -> None:
    with pytest.raises(UsageError, match="drift"):
        problem_from(contenders(101.0, -0.1, apart=False))


class Remeasuring:
    """Measures candidates again: everything takes 1.3 times as long as before."""

    def __init__(self, costs: CostTable) -> None:
        self.costs = costs
        self.asked: list[tuple[set[str], bool]] = []
        self.counts = CandidateCounts(measured=8)

    def again(
        self, groups: Sequence[CandidateGroup], deadline: float, renew: bool = False
    ) -> dict[str, Cost]:
        known = {c.key: self.costs.cost(c.id) for group in groups for c in group.candidates}
        self.asked.append((set(known), renew))
        return {
            key: merged(old, cost_of_repeats([1.3 * (old.median_us or 0.0)] * 9))
            for key, old in known.items()
        }


def cost_of_repeats(repeats: list[float]) -> Cost:
    return cost_of(Timing(samples=[us * 1e-6 for us in repeats]), threads=1)


@pytest.mark.parametrize("measuring_s", [5.0, 60.0])
def test_a_run_that_measures_for_long_learns_the_drift_from_a_second_process(
    tmp_path: Path, measuring_s: float
) -> None:
    graph = chain(*["nn.relu"] * 4)
    rows = [
        row(made, cost_of_repeats([us] * 9), key=made.id)
        for name, us in (("a", 10.0), ("b", 30.0))
        for k in range(4)
        for made in [make_candidate(graph, ToolchainInstance(toolchain=name), (k,), rule="region")]
    ]
    data = data_of(graph, rows, settings=RunSettings(threads=1))
    measuring = Remeasuring(data.costs)
    budget = Budget(600.0)
    budget.started -= measuring_s
    store = Store(tmp_path / "store.sqlite")
    try:
        after, again = learn_drift(data, measuring, store, budget, 0.2)
        if measuring_s < SECOND_PROCESS_FROM_S:
            assert not again and not measuring.asked and recall(store, 1) == []
            return
        assert again and measuring.asked == [({c.key for c in data.candidates}, True)]
        (learnt,) = recall(store, 1)
        assert learnt == pytest.approx([0.3] * 8)
        assert after.constants[DRIFT_CONSTANT] == pytest.approx(0.3)
        assert after.problem().drift == pytest.approx(0.3)
        # Both processes count equally.
        assert {round(after.costs.cost(c.id).at(), 3) for c in data.candidates} == {11.5, 34.5}
    finally:
        store.close()


def test_a_store_whose_drift_is_huge_ends_no_run(tmp_path: Path) -> None:
    graph = chain("nn.relu")
    rows = [
        row(made, cost_of_repeats([us * 0.999, us, us * 1.001] * 3), key=made.id)
        for name, us in (("a", 10.0), ("b", 30.0))
        for made in [make_candidate(graph, ToolchainInstance(toolchain=name), (0,), rule="region")]
    ]
    store = Store(tmp_path / "store.sqlite")
    try:
        # As where a process was frozen while it measured what takes a microsecond.
        learn(store, 1, [moved(1e6)] * ENOUGH_CANDIDATES)
        found = {DRIFT_CONSTANT: drift(recall(store, 1), 0.2)}
        data = data_of(graph, rows, settings=RunSettings(threads=1)).with_constants(found)
        measuring, budget = Remeasuring(data.costs), Budget(600.0)
        budget.started -= SECOND_PROCESS_FROM_S + 1
        _, again = learn_drift(data, measuring, store, budget, 0.2)
        assert again and measuring.asked == [({c.key for c in data.candidates}, True)]
        problem = data.problem()
        probability = data.choice_probability(problem, solve(problem), Search(problem))
        assert problem.drift == pytest.approx(1e6)
        assert 0.0 < probability[rows[0].id] < 1.0, "it may as well be the other one"
    finally:
        store.close()
