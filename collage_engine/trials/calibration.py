"""Calibration: costs are corrected by what partitions take inside whole models.

The best cover, and for every toolchain the best one that favours it, are run and profiled. What
their partitions take there replaces what they took in isolation; for all others it is predicted
from these (``trials.in_model_costs``). The search on such costs proposes another cover, which is
tried in turn, until it proposes one that was, or the time is up. What is predicted too low is tried
and found out; what was measured stays.

Covers that were profiled before, when mixes were tried, count like those that calibration runs
itself. They correct the costs also where no time is left to run another cover.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from collage_engine.planning.search_problem import make_placement, with_conversions
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost_table import CostTable, InModelCost
from collage_engine.records.counted import counted
from collage_engine.records.placement import Placement
from collage_engine.records.precision import is_reduced
from collage_engine.records.time_limits import SHORTEST_RUN_S, STEP_SHARE
from collage_engine.search.api import Search, check, k_best
from collage_engine.search.problem import Answer, Problem
from collage_engine.trials.contender import ProfiledCover, Trial
from collage_engine.trials.in_model_costs import (
    LEAST_OBSERVATIONS,
    InModelCosts,
    Observation,
    fit,
    moved_bytes,
)
from collage_engine.wording.amounts import time_text

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph

REDUCED_TOLERANCE = 1.0
"""Relative error that a cover in reduced precision may have here: only its times are wanted, unless
its numbers are nonsense. Whether it keeps the run's tolerance is found out later; chosen."""
CandidateIds = tuple[str, ...]
"""A cover by its candidates' ids."""
Found = tuple[Answer, list[Placement]]
"""The search's answer, and its covers, best first."""


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """The settings say what the corrections are learnt from."""

    turns: int = 16
    """Proposals of the corrected search that are tried at most; chosen."""
    budget_share: float = 0.25
    """Share of the measuring budget for calibration; chosen."""
    start_share: float = STEP_SHARE
    """Share of that time, at most, for finding covers to begin with."""
    avoided_factor: float = 8.0
    """A cover that favours one toolchain takes others only where they cost so many times less;
    chosen."""
    worth_factor: float = 1.6
    """A cover that would take more than so many times the best cover's estimate is not tried, since
    it teaches too little; chosen."""
    piece_share: float = 0.25
    """Candidates with more than this share of the graph are left out of covers that favour a
    toolchain: many partitions tell more than few; chosen."""

    def seconds(self, budget_s: float) -> float:
        """Return the seconds that calibration may take.

        Args:
            budget_s: Seconds of the run's measuring budget.
        """
        return max(SHORTEST_RUN_S, self.budget_share * budget_s)


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The costs within the model, and the best covers on them, as calibration found them.

    Attributes:
        costs: what is known of the costs, also within the model where a cover could be run.
        answer: the search's answer on these costs.
        placements: its covers, best first, and the one that took least when it was run.
        detail: one phrase for the stage.
        best_us: the least time of a cover that was run; 0: none could be.
    """

    costs: CostTable
    answer: Answer
    placements: list[Placement]
    detail: str
    best_us: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CalibrationInput:
    """Calibration is given the candidates with their costs, and ways to search on other costs.

    Attributes:
        graph: the model.
        candidates: all candidates.
        costs: their isolated costs.
        found: the search's answer on these.
        search: the same on other costs; None where the graph is too wide to find a cover on them.
        problem: the search problem of some costs, under the run's pins and limits.
        run: tries the cover of these candidates, as ``Race.try_cover`` does.
        seconds: how long covers may be proposed; 0: none is, and the costs are corrected by what
            was profiled before.
        profiled: covers that were profiled before.
        stop: whether no further cover is to be proposed, whatever the time.
        on_cover: called before a trial: covers so far, covers at most, and which one it is.
        log: takes what needs no action.
    """

    graph: DataflowGraph
    candidates: Sequence[Candidate]
    costs: CostTable
    found: Found
    search: Callable[[CostTable], Found | None]
    problem: Callable[[CostTable], Problem]
    run: Callable[[CandidateIds], Trial]
    seconds: float
    profiled: Sequence[ProfiledCover] = ()
    stop: Callable[[], bool] = lambda: False
    on_cover: Callable[[int, int, str], None] = lambda done, total, now: None
    log: Callable[[str], None] = lambda text: None


def calibrate(given: CalibrationInput, settings: CalibrationSettings | None = None) -> Calibrated:
    """Try covers whose trials tell what partitions take within the model.

    Args:
        given: The candidates with their costs, and ways to search on other costs.
        settings: What the corrections are learnt from; None: as by default.

    Returns:
        The corrected costs with the best covers on them. Where no cover can be run, the isolated
        costs and the covers that were given.
    """
    return _Calibration(given, settings or CalibrationSettings()).calibrate()


def is_worthwhile(found: Found, candidates: Sequence[Candidate], costs: CostTable) -> bool:
    """Tell whether calibration could learn anything.

    It could where the best cover has several partitions, or where a candidate that covers only a
    part of the graph has a cost: a whole model takes what it takes in isolation.

    Args:
        found: The search's answer on isolated costs, and its covers.
        candidates: All candidates.
        costs: Their isolated costs.
    """
    operators = max((len(c.nodes) for c in candidates), default=0)
    in_pieces = any(costs.cost(c.id).usable and len(c.nodes) < operators for c in candidates)
    return len(found[1][0].partitions) > 1 or in_pieces


class _Calibration:
    """One calibration: what was tried, and what is known from it."""

    def __init__(self, given: CalibrationInput, settings: CalibrationSettings) -> None:
        self.given = given
        self.settings = settings
        self.by_id = {candidate.id: candidate for candidate in given.candidates}
        self.bytes: dict[tuple[int, ...], tuple[int, int]] = {}
        self.observed: dict[str, list[float]] = {}
        """By candidate: µs in each cover that was run."""
        self.tried: set[frozenset[str]] = set()
        self.failed: set[frozenset[str]] = set()
        """Those of them that could not be built or run."""
        self.best_us = 0.0
        """Least time of a cover so far: its partitions, and what is between them."""
        self.best: CandidateIds = ()
        """The cover that had it."""
        self.most = 0
        """Covers tried at most, as far as is known."""
        for known in given.profiled:
            cover = tuple(candidate.id for candidate in known.cover)
            self.tried.add(frozenset(cover))
            self.note(cover, known.trial)
        self.end = time.monotonic() + given.seconds

    def calibrate(self) -> Calibrated:
        """Try the covers to begin with, then those of the search on corrected costs.

        Returns:
            The corrected costs, and the best covers on them.
        """
        answer, placements = self.given.found
        costs = self.given.costs
        if self.given.seconds:
            starts = [ids(placements[0]), *self.favouring(placements[0].estimated_us)]
            self.most = len(starts) + self.settings.turns
            for number, cover in enumerate(starts):
                if number and self.is_over():
                    break
                self.try_cover(cover)
        if not any(self.observations()):
            detail = "no placement could be run; costs stay the isolated ones"
            return Calibrated(costs=costs, answer=answer, placements=placements, detail=detail)
        for turn in range(self.settings.turns + 1):  # after the last trial, a search
            corrected = self.corrected(fit(self.observations()))
            again = self.given.search(corrected)
            if again is None:
                break
            costs, (answer, placements) = corrected, again
            last = turn == self.settings.turns
            if last or not self.try_one_of(placements):
                break
        detail = (
            f"{counted(len(self.tried - self.failed), 'placement')} run, "
            f"{counted(len(self.observed), 'candidate')} measured there; "
            f"{counted(len(self.best), 'partition')} of the best and what is between them took "
            f"{time_text(self.best_us)}, without the call of the whole model"
        )
        return Calibrated(
            costs=costs,
            answer=answer,
            placements=self.with_best(placements, costs),
            detail=detail,
            best_us=self.best_us,
        )

    def is_over(self) -> bool:
        """Tell whether no further cover is proposed."""
        return time.monotonic() > self.end or self.given.stop()

    # ------------------------------------------------------------------ covers

    def favouring(self, best_us: float | None) -> list[CandidateIds]:
        """Return the best cover for each toolchain that consists of many partitions on it.

        Toolchains of which enough partitions were profiled before are left out. Such a cover has
        partitions on other toolchains only where this one has none that is usable, or where another
        one's cost ``avoided_factor`` times less.

        Args:
            best_us: The estimate of the best cover in microseconds; covers that would take more
                than ``worth_factor`` times that are left out. None: there is no estimate.

        Returns:
            The covers by their candidates' ids, the fastest first; two toolchains may have the
            same.
        """
        problem = self.given.problem(self.given.costs)
        limit = max(2, int(self.settings.piece_share * len(problem.nodes)))
        usable = [c for c in self.given.candidates if self.given.costs.cost(c.id).usable]
        seen = Counter(one.toolchain for one in self.observations())
        enough = LEAST_OBSERVATIONS
        names = dict.fromkeys(
            candidate.instance.toolchain
            for candidate in usable
            if seen[candidate.instance.toolchain] < enough
        )
        covers: list[tuple[float, CandidateIds]] = []
        for name in names:
            seconds = self.settings.start_share * self.given.seconds / len(names)
            favoured = self.favouring_problem(problem, name, limit)
            search = Search(favoured, time_limit_s=seconds)
            search.solver.deadline = time.monotonic() + seconds
            for ranked in k_best(favoured, 1, previous=search):
                cost = check(problem, ranked.cover)
                limit_us = math.inf if best_us is None else self.settings.worth_factor * best_us
                if isinstance(cost, float) and cost <= limit_us:
                    covers.append((cost, tuple(str(identity) for identity in ranked.cover)))
        return [cover for _, cover in sorted(covers)]

    def favouring_problem(self, problem: Problem, name: str, limit: int) -> Problem:
        """Return the search problem whose best covers have many partitions on one toolchain.

        Args:
            problem: The search problem of the isolated costs.
            name: The toolchain; candidates of the others cost ``avoided_factor`` times as much.
            limit: Candidates with more nodes than this are left out.
        """
        candidates = []
        for candidate in problem.candidates:
            ours = self.by_id[str(candidate.id)].instance.toolchain == name
            if len(candidate.nodes) > limit:
                candidate = msgspec.structs.replace(
                    candidate, state="invalid", cost_us=None, reason="too large to learn from"
                )
            elif not ours and candidate.cost_us is not None:
                candidate = msgspec.structs.replace(
                    candidate, cost_us=candidate.cost_us * self.settings.avoided_factor
                )
            candidates.append(candidate)
        return msgspec.structs.replace(problem, candidates=tuple(candidates))

    def try_one_of(self, placements: Sequence[Placement]) -> bool:
        """Try the best of some covers; where it cannot be run, the next one.

        Returns:
            Whether one of them was run for the first time; False where the best that can be run had
            been run before, so that nothing is left to learn, or where the time is over.
        """
        for cover in map(ids, placements):
            if frozenset(cover) in self.failed:
                continue
            if frozenset(cover) in self.tried or self.is_over():
                return False
            if self.try_cover(cover):
                return True
        return False

    def try_cover(self, cover: CandidateIds) -> bool:
        """Try a cover, unless it was tried before, and note what its partitions take.

        Returns:
            Whether it could be run.
        """
        key = frozenset(cover)
        if key in self.tried:
            return key not in self.failed
        now = f"placement {len(self.tried) + 1}, {counted(len(cover), 'partition')}"
        if self.best:
            now += f" (partitions of the best so far: {time_text(self.best_us)})"
        self.given.on_cover(len(self.tried), self.most, now)
        self.tried.add(key)
        trial = self.given.run(cover)
        if trial.failures or not trial.partitions_us:
            self.failed.add(key)
            self.given.log(f"a placement could not be run: {trial.failure}")
            return False
        self.note(cover, trial)
        return True

    def note(self, cover: CandidateIds, trial: Trial) -> None:
        """Note what the partitions of a cover took, and whether it is the fastest so far."""
        total = trial.between_us
        for name in cover:
            taken = trial.partitions_us.get(name)
            if taken is not None and taken > 0:
                self.observed.setdefault(name, []).append(taken)
                total += taken
        if not self.best or total < self.best_us:
            self.best_us, self.best = total, cover

    def with_best(self, placements: list[Placement], costs: CostTable) -> list[Placement]:
        """Return the placements, and the cover that took least when it was run.

        That one is added where it is not among them: the search's own choice may rest on
        predictions, and the confirmation decides between them.
        """
        if any(set(ids(placement)) == set(self.best) for placement in placements):
            return placements
        problem = self.given.problem(costs)
        estimate = check(problem, self.best)
        if not isinstance(estimate, float):  # a part of it was never measured in isolation
            return placements
        best = make_placement(
            self.given.graph.record,
            self.by_id,
            costs,
            list(self.best),
            estimate,
        )
        return [*placements, with_conversions(best, problem)]

    # ------------------------------------------------------------------ costs

    def observations(self) -> Iterator[Observation]:
        """Yield the times and sizes of each candidate that was run within a model.

        Those without an isolated cost say nothing of the difference, and are left out.
        """
        for name, times in self.observed.items():
            candidate = self.by_id[name]
            if not self.given.costs.isolated_cost(name).us > 0:  # unknown costs are NaN
                continue
            weights, values = self.moved(candidate)
            yield Observation(
                toolchain=candidate.instance.toolchain,
                isolated_us=self.given.costs.isolated_cost(name).us,
                in_model_us=statistics.median(times),
                weight_bytes=weights,
                value_bytes=values,
                share=self.share(candidate),
            )

    def corrected(self, model: InModelCosts) -> CostTable:
        """Return the costs with those within the model added.

        Args:
            model: Predicts what a candidate takes within the model.

        Returns:
            The median of what was seen where a candidate was run within a model, and a prediction
            for the others. A candidate that takes as long as the best cover keeps its isolated
            cost.
        """
        within: dict[str, InModelCost] = {}
        for candidate in self.given.candidates:
            cost = self.given.costs.isolated_cost(candidate.id)
            isolated_us = cost.us
            if not cost.usable or isolated_us <= 0:
                continue
            share = self.share(candidate)
            if candidate.id in self.observed:
                seen_us = statistics.median(self.observed[candidate.id])
                within[candidate.id] = InModelCost(seen_us, isolated_us, "seen")
            elif share < 1.0:
                weights, values = self.moved(candidate)
                toolchain = candidate.instance.toolchain
                added_us = model.added_us(toolchain, isolated_us, weights, values, share)
                within[candidate.id] = InModelCost(isolated_us + added_us, isolated_us, "predicted")
        return self.given.costs.with_in_model(within)

    def moved(self, candidate: Candidate) -> tuple[int, int]:
        """Return the bytes of a candidate's weights, and of the values that cross its border."""
        if candidate.nodes not in self.bytes:
            self.bytes[candidate.nodes] = moved_bytes(self.given.graph, candidate.nodes)
        return self.bytes[candidate.nodes]

    def share(self, candidate: Candidate) -> float:
        """Return the candidate's share of the best cover's time, at most 1."""
        if not self.best_us:
            return 0.0
        return min(1.0, self.given.costs.isolated_cost(candidate.id).us / self.best_us)


def learning_tolerance(cover: Sequence[Candidate], tolerance: float) -> float | None:
    """Return the bound on ``max|y-r| / max|r|`` of a cover that is run for its times.

    Returns:
        ``REDUCED_TOLERANCE`` for a cover in reduced precision where that is more than the run's
        tolerance; None: the run's own.
    """
    reduced = any(is_reduced(candidate.instance) for candidate in cover)
    return REDUCED_TOLERANCE if reduced and tolerance < REDUCED_TOLERANCE else None


def ids(placement: Placement) -> CandidateIds:
    """Return the ids of a placement's candidates, in the order of its partitions."""
    return tuple(part.candidate for part in placement.partitions)
