"""The stage that corrects costs by what partitions take within the model, and searches again.

The best cover, and for every toolchain the best one that prefers it, are built, run and profiled.
What their partitions take there replaces what they took by themselves; for all other candidates it
is predicted from these (``trials.in_model_costs``). The search on such costs proposes another
cover, which is run in turn, until it proposes one that was run, or the time is up. A prediction
that is too low leads to a proposal and is found out; a cost that was seen stays.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.progress import StageReport
from collage_engine.control.run_control import RunControl
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.candidate import Candidate, CoverPart
from collage_engine.records.cost_table import CostTable, InModelCost
from collage_engine.records.counted import counted
from collage_engine.records.errors import InfeasibleError
from collage_engine.records.placement import Placement
from collage_engine.run.problem_data import ProblemData, candidates_of
from collage_engine.run.stages.search import NotOffered, SearchResult, find_covers
from collage_engine.search.api import Search, check, k_best
from collage_engine.search.explain import us
from collage_engine.search.problem import Answer, Problem
from collage_engine.trials.baselines import part_of
from collage_engine.trials.calibration import Looked, RunCovers
from collage_engine.trials.contender import Sample
from collage_engine.trials.in_model_costs import InPlace, Seen, fit, moved_bytes

TURNS = 16
"""Proposals of the corrected search that are run, at most; chosen: later ones rarely differ."""
BUDGET_SHARE = 0.25
"""Calibration may take this share of the measuring budget, and at least ``LEAST_S``; chosen."""
LEAST_S = 10.0
"""Seconds that calibration may always take; chosen: enough to run three covers."""
START_SHARE = 0.5
"""Share of that time, at most, for finding covers to begin with; chosen."""
AVOIDED = 8.0
"""Factor on the costs of other toolchains when a cover that prefers one toolchain is searched;
chosen, so that others are taken only where the toolchain has nothing."""
WORTH_RUNNING = 1.6
"""A cover that should take so many times the best one's time is not run; chosen."""
LARGEST_SHARE = 0.25
"""No cover to begin with has a candidate with more than this share of the operators; chosen: many
partitions tell more than few."""


@dataclass(frozen=True, kw_only=True)
class CalibrateInputs:
    """The best covers so far, and what is needed to run covers."""

    open_model: OpenModel
    menu: Menu
    data: ProblemData
    answer: Answer
    placements: tuple[Placement, ...]
    sample: Sample
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class CalibrateResult:
    """Costs within the model and the best covers on these."""

    data: ProblemData
    answer: Answer
    placements: tuple[Placement, ...]
    """Best first, by the search; last the cover that ran fastest, where it is none of these."""


class RunsCovers(Protocol):
    """Builds covers, runs them and says what their partitions take."""

    def look(self, cover: tuple[CoverPart, ...]) -> Looked | str:
        """What the cover took; the reason when it cannot be built or run."""
        ...


class Calibrate:
    """Runs covers whole, and searches again on what their partitions take there."""

    name = "in-place"
    inputs = CalibrateInputs

    def run(self, inputs: CalibrateInputs, control: RunControl) -> CalibrateResult:
        """Calibrate costs; where no cover could be run, everything stays as it is."""
        data = inputs.data
        found = SearchResult(answer=inputs.answer, placements=inputs.placements)
        unchanged = CalibrateResult(data=data, answer=found.answer, placements=found.placements)
        if not data.settings.in_place:
            return unchanged
        if len(found.placements[0].partitions) == 1 and not _has_pieces(data):
            return unchanged  # whole models take what they take by themselves
        if inputs.menu.target.kind != "cpu":
            # The VM's clock sees calls being issued, and one graph for all of them. On a device
            # candidates are timed as they run in the model: in a graph, weights from memory.
            return unchanged
        model = inputs.open_model.model
        folder = Path(tempfile.mkdtemp(prefix="in-place-", dir=inputs.open_model.folder))
        try:
            with (
                control.stage("in-place") as report,
                RunCovers(model, inputs.sample, inputs.tolerance, folder, control) as covers,
            ):
                calibration = Calibration(
                    model.graph, data, inputs.menu.not_offered, covers, control
                )
                return calibration.run(found, report)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _has_pieces(data: ProblemData) -> bool:
    return any(data.costs.cost(c.id).usable and c.rule != "whole-model" for c in data.candidates)


class Calibration:
    """The covers of one run that were run whole, and what was learnt from them."""

    def __init__(
        self,
        graph: DataflowGraph,
        data: ProblemData,
        not_offered: NotOffered,
        covers: RunsCovers,
        control: RunControl,
        fit_model: Callable[[list[Seen]], InPlace] = fit,
        turns: int = TURNS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with isolated costs.

        Args:
            graph: The model.
            data: The candidates with their isolated costs.
            not_offered: Why instances have no candidate for an operator.
            covers: Runs covers.
            control: The run's cancel flag.
            fit_model: Fits the model of costs within the model to those that were seen.
            turns: Proposals of the corrected search that are run, at most.
            clock: Seconds of a monotonic clock.
        """
        self.graph = graph
        self.data = data
        self.not_offered = not_offered
        self.covers = covers
        self.control = control
        self.fit_model = fit_model
        self.turns = turns
        self.clock = clock
        self.bytes: dict[tuple[int, ...], tuple[int, int]] = {}
        self.taken: dict[str, list[float]] = {}
        """By candidate: microseconds that it took in each cover that was run."""
        self.tried: set[frozenset[str]] = set()
        self.failed: set[frozenset[str]] = set()
        """Those of the tried covers that could not be built or run."""
        self.best_us = 0.0
        """Least time of a cover so far: its partitions, and what is between them."""
        self.best: list[str] = []
        """The cover that had it."""
        self.seconds = max(LEAST_S, BUDGET_SHARE * data.settings.budget_s)
        self.deadline = clock() + self.seconds

    def run(self, found: SearchResult, report: StageReport) -> CalibrateResult:
        """Run covers until the search proposes nothing new or the time is up.

        Args:
            found: The search's answer on isolated costs.
            report: Where progress is reported.
        """
        data = self.data
        best = found.placements[0]
        starts = [candidates_of(best), *self.starting_covers(best.estimated_us)]
        for number, cover in enumerate(starts):
            if number and self.clock() > self.deadline:
                break
            self.try_cover(cover, report, len(starts) + self.turns)
        if not self.taken:
            report.detail = "no cover could be run; costs stay those measured in isolation"
            return CalibrateResult(data=data, answer=found.answer, placements=found.placements)
        for turn in range(self.turns + 1):  # after the last cover, a search
            corrected = self.data.with_costs(self.corrected(self.fit_model(self.seen())))
            try:
                found = find_covers(corrected, self.not_offered)
            except InfeasibleError as error:
                self.control.log(f"no search on the costs within the model: {error}")
                break
            data = corrected
            if turn == self.turns or not self.try_one_of(
                found.placements, report, len(starts) + self.turns
            ):
                break
        report.detail = (
            f"{counted(len(self.tried - self.failed), 'cover')} run, "
            f"{counted(len(self.taken), 'candidate')} seen there; "
            f"the best took {us(self.best_us)} "
            f"in {counted(len(self.best), 'partition')}"
        )
        return self._with_best(data, found)

    def try_one_of(self, placements: Sequence[Placement], report: StageReport, most: int) -> bool:
        """Run the best of these covers; where that fails, the next one.

        Returns:
            False when there is nothing left to learn from these covers, or no time.
        """
        for cover in map(candidates_of, placements):
            if frozenset(cover) in self.failed:
                continue
            if frozenset(cover) in self.tried or self.clock() > self.deadline:
                return False
            if self.try_cover(cover, report, most):
                return True
        return False

    def _with_best(self, data: ProblemData, found: SearchResult) -> CalibrateResult:
        """Add the cover that ran fastest, for the confirmation to decide.

        The search's own covers may rest on predictions.
        """
        placements = found.placements
        if not any(set(candidates_of(p)) == set(self.best) for p in placements):
            placements = (*placements, data.placement(self.best, data.problem()))
        return CalibrateResult(data=data, answer=found.answer, placements=placements)

    def starting_covers(self, best_us: float | None) -> list[list[str]]:
        """For every toolchain, the best cover that prefers its small candidates, fastest first.

        Other toolchains are taken only where it has nothing. Several may have the same cover.

        Args:
            best_us: Estimated microseconds of the best cover.
        """
        problem = self.data.problem()
        limit = max(2, int(LARGEST_SHARE * len(problem.nodes)))
        names = dict.fromkeys(
            c.instance.toolchain
            for c in self.data.candidates
            if self.data.costs.isolated_cost(c.id).usable
        )
        covers: list[tuple[float, list[str]]] = []
        for name in names:
            self.control.check()
            seconds = START_SHARE * self.seconds / len(names)
            preferring = _preferring(problem, name, self.data.by_id, limit)
            search = Search(preferring, time_limit_s=seconds)
            search.solver.deadline = time.monotonic() + seconds
            for ranked in k_best(preferring, 1, previous=search):
                cost = check(problem, ranked.cover)
                if isinstance(cost, float) and (best_us is None or cost <= WORTH_RUNNING * best_us):
                    covers.append((cost, [str(identity) for identity in ranked.cover]))
        return [cover for _, cover in sorted(covers)]

    def try_cover(self, cover: Sequence[str], report: StageReport, most: int) -> bool:
        """Run a cover and note what its partitions take; whether it could be run."""
        if frozenset(cover) in self.tried:
            return frozenset(cover) not in self.failed
        self.control.check()
        now = f"cover {len(self.tried) + 1}, {counted(len(cover), 'partition')}"
        if self.best:
            now += f" (the best so far took {self.best_us / 1000:.3g} ms)"
        report.progress(len(self.tried), most, now)
        self.tried.add(frozenset(cover))
        parts = [self.data.by_id[name] for name in cover]
        profile = self.covers.look(tuple(map(part_of, parts)))
        if isinstance(profile, str):
            self.failed.add(frozenset(cover))
            self.control.log(f"a cover could not be run: {profile}")
            return False
        total = profile.between_us
        for candidate in parts:
            took = profile.parts.get((candidate.instance.id, candidate.nodes))
            if took is not None and took > 0:
                self.taken.setdefault(candidate.id, []).append(took)
                total += took
        if not self.best or total < self.best_us:
            self.best_us, self.best = total, list(cover)
        return True

    def moved(self, candidate: Candidate) -> tuple[int, int]:
        """Bytes of weights and of values that a candidate moves."""
        if candidate.nodes not in self.bytes:
            self.bytes[candidate.nodes] = moved_bytes(self.graph, candidate.nodes)
        return self.bytes[candidate.nodes]

    def share(self, candidate: Candidate) -> float:
        """A candidate's isolated cost as a share of the fastest cover's time, at most 1."""
        if not self.best_us:
            return 0.0
        return min(1.0, self.data.costs.isolated_cost(candidate.id).at() / self.best_us)

    def seen(self) -> list[Seen]:
        """What was seen of every candidate in the covers that were run."""
        found = []
        for name, times in self.taken.items():
            candidate = self.data.by_id[name]
            weights, values = self.moved(candidate)
            found.append(
                Seen(
                    toolchain=candidate.instance.toolchain,
                    alone_us=self.data.costs.isolated_cost(name).at(),
                    in_place_us=statistics.median(times),
                    weight_bytes=weights,
                    value_bytes=values,
                    share=self.share(candidate),
                )
            )
        return found

    def corrected(self, model: InPlace) -> CostTable:
        """The costs, those of measured candidates within the model: seen there or predicted."""
        within: dict[str, InModelCost] = {}
        for candidate in self.data.candidates:
            cost = self.data.costs.isolated_cost(candidate.id)
            if not cost.usable or not cost.at() > 0:
                continue
            if candidate.id in self.taken:
                seen_us = statistics.median(self.taken[candidate.id])
                within[candidate.id] = InModelCost(seen_us, cost.at(), "seen")
            elif self.share(candidate) < 1.0:
                added = model.added_us(
                    candidate.instance.toolchain,
                    cost.at(),
                    *self.moved(candidate),
                    self.share(candidate),
                )
                within[candidate.id] = InModelCost(cost.at() + added, cost.at(), "predicted")
        return self.data.costs.with_in_model(within)


def _preferring(
    problem: Problem, toolchain: str, candidates: dict[str, Candidate], limit: int
) -> Problem:
    """The problem with other toolchains made dear, without candidates of over ``limit`` nodes."""
    changed = []
    for candidate in problem.candidates:
        ours = candidates[str(candidate.id)].instance.toolchain == toolchain
        if len(candidate.nodes) > limit:
            candidate = msgspec.structs.replace(
                candidate, state="invalid", cost_us=None, reason="too large to learn from"
            )
        elif not ours and candidate.cost_us is not None:
            candidate = msgspec.structs.replace(candidate, cost_us=candidate.cost_us * AVOIDED)
        changed.append(candidate)
    return msgspec.structs.replace(problem, candidates=tuple(changed))
