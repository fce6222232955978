"""The fastest cover within a bound on rounding, and the procedure around it: by brute force."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from collage_engine.search.error_bound import ErrorBoundedSearch
from collage_engine.search.problem import (
    CandidateId,
    Problem,
    ProblemCandidate,
    ProblemNode,
    ProblemPin,
)
from collage_engine.search.problem_json import problem_from
from collage_engine.trials.accuracy import (
    ACCURACY,
    KeptTolerance,
    WiderProblem,
    keep_tolerance,
)
from collage_engine.trials.proposals import Trial, run_proposals
from tests.support.search_graphs import problem_on, residual
from tests.support.search_instances import BruteForce, random_problem


def errors_of(problem: Problem, seed: int) -> dict[CandidateId, float]:
    """Half of the candidates round, by more or less."""
    rng = random.Random(seed)
    return {c.id: rng.uniform(1e-3, 5e-3) for c in problem.candidates if rng.random() < 0.5}


def every_cover(data: dict[str, object], errors: dict[CandidateId, float]):
    """(cost, burden) of every cover."""
    force = BruteForce(data)
    ids = [c["id"] for c in data["candidates"]]
    return [
        (float(cost), sum(errors.get(ids[i], 0.0) ** 2 for i in cover))
        for cost, cover in force.covers
    ]


@pytest.mark.parametrize("seed", range(60))
def test_fastest_within_a_bound_is_brute_forces(seed: int) -> None:
    data = random_problem(seed) | {"pins": []}
    problem = problem_from(data)
    errors = errors_of(problem, seed)
    covers = every_cover(data, errors)
    search = ErrorBoundedSearch(problem, errors)
    free = search.fastest()
    if not covers:
        assert free is None
        return
    assert free is not None
    assert free.cost_us == pytest.approx(min(cost for cost, _ in covers), abs=1e-6)
    rng = random.Random(seed)
    largest = max(burden for _, burden in covers)
    for bound in (largest * rng.random() for _ in range(4)):
        admitted = [cost for cost, burden in covers if burden <= bound]
        found = search.fastest(bound)
        if not admitted:
            assert found is None
            continue
        assert found is not None and found.squared_error <= bound
        assert found.cost_us == pytest.approx(min(admitted), abs=1e-6)
    # The prices are gone again.
    again = search.fastest()
    assert again is not None and again.cost_us == free.cost_us


def in_two_precisions(count: int, seed: int) -> tuple[Problem, dict[CandidateId, float]]:
    """Every candidate once more, faster by a third or so and with an error."""
    rng = random.Random(seed)
    problem = problem_from(problem_on(residual(count), seed=seed))
    twins, errors = [], {}
    for c in problem.candidates:
        if c.state != "measured" or c.cost_us is None:
            continue
        name = f"{c.id}+"
        twins.append(
            msgspec.structs.replace(
                c,
                id=name,
                toolchain=f"{c.toolchain}[precision=bf16]",
                cost_us=c.cost_us * rng.uniform(0.45, 0.95),
                spread_us=None,
            )
        )
        errors[name] = rng.uniform(1e-3, 4e-3)
    plain = tuple(msgspec.structs.replace(c, spread_us=None) for c in problem.candidates)
    return msgspec.structs.replace(problem, candidates=(*plain, *twins)), errors


class Machine:
    """End-to-end errors: every rounding arrives at the result, damped by a factor of its own."""

    def __init__(self, problem: Problem, errors: dict[CandidateId, float], spread: float) -> None:
        rng = random.Random(len(errors))
        self.share = {name: e * rng.uniform(1 - spread, 1 + spread) for name, e in errors.items()}
        self.runs = 0

    def __call__(self, cover: Sequence[CandidateId]) -> float:
        self.runs += 1
        return 0.3 * math.sqrt(math.fsum(self.share.get(name, 1e-7) ** 2 for name in cover))


def kept(
    problem: Problem, errors: dict[CandidateId, float], share: float, machine: Machine
) -> KeptTolerance:
    """With a tolerance that is this share of what the fastest cover has."""
    free = ErrorBoundedSearch(problem, errors).fastest()
    assert free is not None
    tolerance = share * machine(free.cover)
    return run_proposals(
        keep_tolerance(problem, errors, errors, tolerance),
        lambda cover: Trial(max_rel_error=machine(cover)),
    )


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3])
@pytest.mark.parametrize("seed", range(6))
def test_procedure_finds_the_fastest_when_errors_add_up_as_it_supposes(
    seed: int, share: float
) -> None:
    problem, errors = in_two_precisions(24, seed)
    machine = Machine(problem, errors, spread=0.0)
    found = kept(problem, errors, share, machine)
    assert found.full is not None and found.within
    best = found.within[0]
    search = ErrorBoundedSearch(problem, errors)
    free = search.fastest()
    assert free is not None
    exact = search.fastest(free.squared_error * share**2)
    assert exact is not None and best.cost_us == pytest.approx(exact.cost_us, rel=1e-3)
    assert best.cost_us < found.full.cost_us
    assert machine.runs <= ACCURACY.tries + 2


@pytest.mark.parametrize("seed", range(6))
def test_procedure_keeps_the_tolerance_when_errors_arrive_unequally(seed: int) -> None:
    problem, errors = in_two_precisions(24, seed)
    machine = Machine(problem, errors, spread=0.9)
    found = kept(problem, errors, 0.5, machine)
    assert found.full is not None and found.within
    free = found.tried[0]
    # Nothing over the tolerance is among them, and most of what can be won is.
    assert all(t.max_rel_error is not None for t in found.within)
    assert free not in found.within
    limit = 0.5 * (free.max_rel_error or 0.0)
    assert max(t.max_rel_error or 0.0 for t in found.within) <= limit
    won = (found.full.cost_us - found.within[0].cost_us) / (found.full.cost_us - free.cost_us)
    assert won > 0.2
    assert machine.runs <= ACCURACY.tries + 2


def test_float32_remains_when_nothing_else_keeps_the_tolerance() -> None:
    problem, errors = in_two_precisions(12, 1)
    found = run_proposals(
        keep_tolerance(problem, errors, errors, 1e-6),
        lambda cover: Trial(max_rel_error=0.5 if any(c in errors for c in cover) else 1e-7),
    )
    assert found.full is not None and found.within == (found.full,)
    assert not set(found.full.cover) & set(errors)


def test_a_cover_that_cannot_be_run_is_passed_over() -> None:
    problem, errors = in_two_precisions(12, 2)
    free = ErrorBoundedSearch(problem, errors).fastest()
    assert free is not None
    broken = frozenset(free.cover)
    crashed, ran = Trial(failures=("it crashed",)), Trial(max_rel_error=1e-3)
    found = run_proposals(
        keep_tolerance(problem, errors, errors, 1.0),
        lambda cover: crashed if frozenset(cover) == broken else ran,
    )
    assert found.tried[0].reason == "it crashed"
    assert found.within and frozenset(found.within[0].cover) != broken


def test_a_whole_model_candidate_over_the_tolerance_is_not_even_built() -> None:
    problem, errors = in_two_precisions(8, 3)
    whole = msgspec.structs.replace(
        problem.candidates[0], id="whole", nodes=tuple(n.id for n in problem.nodes), cost_us=0.001
    )
    problem = msgspec.structs.replace(problem, candidates=(*problem.candidates, whole))
    errors["whole"] = 0.5
    seen: list[CandidateId] = []

    def run(cover: tuple[CandidateId, ...]) -> Trial:
        seen.extend(cover)
        return Trial(max_rel_error=1e-3)

    found = run_proposals(keep_tolerance(problem, errors, errors, 0.01), run)
    assert found.within and "whole" not in seen


# ------------------------------------------------- what is asked for when a whole model is refused

TOLERANCE = 0.01
NODES = (0, 1)


def candidate(name: str, us: float, nodes: tuple[int, ...] = NODES) -> ProblemCandidate:
    return ProblemCandidate(id=name, nodes=nodes, toolchain=name.partition(":")[0], cost_us=us)


def two_nodes(*candidates: ProblemCandidate, pins: tuple[ProblemPin, ...] = ()) -> Problem:
    nodes = (ProblemNode(id=0), ProblemNode(id=1, inputs=(0,)))
    return Problem(nodes=nodes, outputs=(1,), candidates=candidates, pins=pins)


class Asked:
    """``weigh`` with canned additions, and trials with canned errors of covers."""

    def __init__(
        self,
        problem: Problem,
        errors: Mapping[CandidateId, float],
        more: Sequence[ProblemCandidate] = (),
    ) -> None:
        self.problem, self.errors = problem, errors
        self.more = tuple(more)
        self.weighed = 0
        self.tried: list[tuple[CandidateId, ...]] = []
        self.covers: dict[frozenset[CandidateId], float | str] = {}

    def reduced(self, candidates: Sequence[ProblemCandidate]) -> list[CandidateId]:
        return [c.id for c in candidates if str(c.id).startswith(("low", "mixed"))]

    def weigh(self) -> WiderProblem:
        self.weighed += 1
        every = (*self.problem.candidates, *self.more)
        problem = msgspec.structs.replace(self.problem, candidates=every)
        return WiderProblem(
            problem=problem, errors=self.errors, arriving=self.errors, reduced=self.reduced(every)
        )

    def run(self, cover: tuple[CandidateId, ...]) -> Trial:
        self.tried.append(cover)
        alone = max(self.errors.get(name, 0.0) for name in cover)
        found = self.covers.get(frozenset(cover), alone)
        return Trial(failures=(found,)) if isinstance(found, str) else Trial(max_rel_error=found)

    def keep(self) -> KeptTolerance:
        known = {c.id for c in self.problem.candidates}
        first = {name: e for name, e in self.errors.items() if name in known}
        few = self.reduced(self.problem.candidates)
        procedure = keep_tolerance(self.problem, first, few, TOLERANCE, self.weigh)
        return run_proposals(procedure, self.run)


def test_a_refused_whole_model_that_is_faster_is_asked_for_in_two_precisions() -> None:
    problem = two_nodes(candidate("full", 10.0), candidate("low", 4.0))
    more = [candidate("mixed:a", 5.0), candidate("mixed:b", 7.0)]
    asked = Asked(problem, {"low": 0.03, "mixed:a": 0.02, "mixed:b": 0.008}, more)
    found = asked.keep()
    assert asked.weighed == 1
    # What breaks the tolerance alone is not built: neither the first nor what came later.
    assert {name for cover in asked.tried for name in cover} == {"full", "mixed:b"}
    assert [t.cover for t in found.within] == [("mixed:b",), ("full",)]
    assert found.full is not None and found.full.cover == ("full",)


def test_a_mixed_candidate_is_not_the_cover_without_reduced_precision() -> None:
    problem = two_nodes(candidate("full", 10.0), candidate("low", 4.0))
    asked = Asked(problem, {"low": 0.03, "mixed": 0.009}, [candidate("mixed", 5.0)])
    asked.covers[frozenset({"mixed"})] = 0.012  # on all samples
    found = asked.keep()
    # It breaks the tolerance once it is run; float32 is there to remain.
    assert ("mixed",) in asked.tried and [t.cover for t in found.within] == [("full",)]
    assert found.full is not None and found.full.cover == ("full",)


@pytest.mark.parametrize("us", [4.0, 12.0])
def test_a_refused_whole_model_that_is_slower_or_barred_is_not_asked_for(us: float) -> None:
    pins = () if us > 10 else (ProblemPin(nodes=(1,), not_toolchain="low"),)
    problem = two_nodes(candidate("full", 10.0), candidate("low", us), pins=pins)
    asked = Asked(problem, {"low": 0.03, "mixed": 0.001}, [candidate("mixed", 1.0)])
    found = asked.keep()
    assert asked.weighed == 0 and [t.cover for t in found.within] == [("full",)]


def test_where_refused_whole_models_are_all_there_is_more_is_asked_for() -> None:
    asked = Asked(
        two_nodes(candidate("low", 4.0)), {"low": 0.03, "mixed": 0.005}, [candidate("mixed", 5)]
    )
    found = asked.keep()
    assert asked.weighed == 1 and [t.cover for t in found.within] == [("mixed",)]
    assert found.full is None
    nothing = Asked(two_nodes(candidate("low", 4.0)), {"low": 0.03})
    assert nothing.keep() == KeptTolerance(tried=(), within=(), full=None)
    without = Asked(two_nodes(candidate("full", 4.0, (0,))), {})
    assert without.keep() == KeptTolerance(tried=(), within=(), full=None) and without.weighed == 0


def test_what_only_breaks_the_tolerance_on_all_samples_leaves_what_kept_it() -> None:
    problem = two_nodes(
        candidate("full", 10.0),
        candidate("low", 4.0),
        candidate("low:0", 3.0, (0,)),
        candidate("full:0", 5.0, (0,)),
        candidate("full:1", 6.0, (1,)),
    )
    errors: dict[CandidateId, float] = {"low": 0.03, "low:0": 0.009, "mixed": 0.0095}
    asked = Asked(problem, errors, [candidate("mixed", 5.0)])
    asked.covers[frozenset({"mixed"})] = 0.02
    found = asked.keep()
    assert asked.tried[:2] == [("low:0", "full:1"), ("mixed",)]
    assert [t.cover for t in found.within] == [("low:0", "full:1"), ("full",)]
    assert all((t.max_rel_error or 0) <= TOLERANCE for t in found.within)


def test_a_mixed_one_that_cannot_be_run_is_passed_over() -> None:
    problem = two_nodes(candidate("full", 10.0), candidate("low", 4.0))
    asked = Asked(problem, {"low": 0.03, "mixed": 0.005}, [candidate("mixed", 5.0)])
    asked.covers[frozenset({"mixed"})] = "it crashed"
    found = asked.keep()
    assert [t.reason for t in found.tried] == [None, "it crashed"]
    assert [t.cover for t in found.within] == [("full",)]
