"""The stage that corrects costs by what partitions take within a model, and searches again.

The best cover, and for every toolchain the best one that leans on it, are built, run and looked
into. What their partitions take there stands in for what they took alone; for all others it is
predicted from these (``measure/in_place.py``). The search on such costs proposes another cover,
which is looked into in turn, until it proposes one that was, or the time is up. What is predicted
too low is tried and found out; what was seen stays.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from collage_engine.control.progress import StageReport
from collage_engine.planning.problem import make_placement, with_conversions
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.counted import counted
from collage_engine.records.errors import InfeasibleError
from collage_engine.records.placement import Placement
from collage_engine.run.stages.search import find_covers
from collage_engine.search.api import Search, check, k_best
from collage_engine.search.explain import us
from collage_engine.search.problem import Answer, Problem
from collage_engine.trials.baselines import part_of
from collage_engine.trials.calibration import RunCovers
from collage_engine.trials.contender import Sample
from collage_engine.trials.in_model_costs import InPlace, Seen, fit, moved_bytes

if TYPE_CHECKING:
    from collage_engine.candidates.open_model import Menu
    from collage_engine.run.context import RunState

TURNS = 16
"""Proposals of the corrected search that are looked into."""
SHARE = 0.25
"""Of the measuring budget; at least ``LEAST_S``."""
LEAST_S = 10.0
LEANING = 0.5
"""Of that time, at most, for finding covers to begin with."""
AVOIDED = 8.0
"""A cover that leans on one toolchain takes others only where they cost so many times less."""
WORTH = 1.6
"""What takes so many times the best cover's time alone is not worth looking into."""
PIECES = 0.25
"""And no candidate with more than this share of the graph: many partitions tell more than few."""


def settle_in_place(
    state: RunState, menu: Menu, found: tuple[Answer, list[Placement]], sample: Sample
) -> tuple[Answer, list[Placement]]:
    """The search's answer and covers on costs as they are within the model.

    ``state.records`` hold such costs afterwards. Where no cover could be run, all stays as it is.
    """
    if len(found[1][0].partitions) == 1 and not _in_pieces(state.records):
        return found  # nothing to learn: whole models take what they take alone
    if menu.target.kind != "cpu":
        # The VM's clock sees calls being issued, and one graph for all of them. On a device
        # candidates are timed as they run in the model: in a graph, their weights from memory.
        return found
    folder = Path(tempfile.mkdtemp(prefix="in-place-", dir=state.workspace.folder))
    try:
        with (
            state.control.stage("in-place") as report,
            RunCovers(state.model, sample, state.tolerance, folder, state.control) as covers,
        ):
            return _Settling(state, menu, covers).go(found, report)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_pieces(records: Sequence[CandidateRecord]) -> bool:
    return any(record.cost.usable and record.rule != "whole-model" for record in records)


class _Settling:
    def __init__(self, state: RunState, menu: Menu, covers: RunCovers) -> None:
        self.state = state
        self.menu = menu
        self.covers = covers
        self.alone = {record.id: record for record in state.records}
        self.bytes: dict[tuple[int, ...], tuple[int, int]] = {}
        self.taken: dict[str, list[float]] = {}
        """By candidate: what it took in each cover that was looked into."""
        self.looked: set[frozenset[str]] = set()
        self.failed: set[frozenset[str]] = set()
        """Those of them that could not be built or run."""
        self.whole_us = 0.0
        """Least time of a cover so far: its partitions, and what is between them."""
        self.best: list[str] = []
        """The cover that had it."""
        self.seconds = max(LEAST_S, SHARE * state.settings.budget_s)
        self.end = time.monotonic() + self.seconds

    def go(
        self, found: tuple[Answer, list[Placement]], report: StageReport
    ) -> tuple[Answer, list[Placement]]:
        starts = [ids(found[1][0]), *self.leaning(found[1][0].estimated_us)]
        for number, cover in enumerate(starts):
            if number and time.monotonic() > self.end:
                break
            self.look(cover, report, len(starts) + TURNS)
        if not self.taken:
            report.detail = "no cover could be looked into; costs stay those alone"
            return found
        for turn in range(TURNS + 1):  # after the last look, a search
            again = self.search()
            if again is None:
                break
            found = again
            if turn == TURNS or not self.look_further(found[1], report, len(starts) + TURNS):
                break
        report.detail = (
            f"{counted(len(self.looked - self.failed), 'cover')} run, "
            f"{counted(len(self.taken), 'candidate')} seen there; "
            f"the best took {us(self.whole_us)} "
            f"in {counted(len(self.best), 'partition')}"
        )
        return self.with_best(found)

    def search(self) -> tuple[Answer, list[Placement]] | None:
        """The search's answer on what is known now; None, and costs as they were, where the graph
        is too wide to find a cover on these."""
        before = self.state.records
        self.state.records = self.corrected(fit(self.seen()))
        try:
            return find_covers(self.state, self.menu)
        except InfeasibleError as error:
            self.state.records = before
            self.state.control.log(f"no search on the costs within the model: {error}")
            return None

    def look_further(self, placements: Sequence[Placement], report: StageReport, most: int) -> bool:
        """Look into the best of these covers; where that cannot be run, into the next. False when
        there is nothing left to learn from them, or no time."""
        for cover in map(ids, placements):
            if frozenset(cover) in self.failed:
                continue
            if frozenset(cover) in self.looked or time.monotonic() > self.end:
                return False
            if self.look(cover, report, most):
                return True
        return False

    def with_best(self, found: tuple[Answer, list[Placement]]) -> tuple[Answer, list[Placement]]:
        """Also the cover that took least when looked into, for the confirmation to decide: the
        search's own may rest on predictions."""
        answer, placements = found
        if any(set(ids(placement)) == set(self.best) for placement in placements):
            return found
        problem = self.state.problem()
        estimate = check(problem, self.best)
        best = make_placement(
            self.state.graph,
            self.state.by_id(),
            self.best,
            estimate if isinstance(estimate, float) else None,
            self.state.settings.percentile,
        )
        return answer, [*placements, with_conversions(best, problem)]

    def leaning(self, best_us: float | None) -> list[list[str]]:
        """For every toolchain, the best cover of its own pieces, the fastest first; of others
        only where it has nothing. Several toolchains may have the same one."""
        problem = self.state.problem()
        limit = max(2, int(PIECES * len(problem.nodes)))
        names = dict.fromkeys(c.instance.toolchain for c in self.alone.values() if c.cost.usable)
        covers: list[tuple[float, list[str]]] = []
        for name in names:
            self.state.control.check()
            seconds = LEANING * self.seconds / len(names)
            leant = _leaning_on(problem, name, self.alone, limit)
            search = Search(leant, time_limit_s=seconds)
            search.until = time.monotonic() + seconds
            for ranked in k_best(leant, 1, previous=search):
                us = check(problem, ranked.cover)
                if isinstance(us, float) and (best_us is None or us <= WORTH * best_us):
                    covers.append((us, [str(identity) for identity in ranked.cover]))
        return [cover for _, cover in sorted(covers)]

    def look(self, cover: Sequence[str], report: StageReport, most: int) -> bool:
        """Run a cover and note what its partitions take; whether it could be run."""
        if frozenset(cover) in self.looked:
            return frozenset(cover) not in self.failed
        self.state.control.check()
        now = f"cover {len(self.looked) + 1}, {counted(len(cover), 'partition')}"
        if self.best:
            now += f" (the best so far took {self.whole_us / 1000:.3g} ms)"
        report.progress(len(self.looked), most, now)
        self.looked.add(frozenset(cover))
        parts = [self.alone[name] for name in cover]
        looked = self.covers.look(tuple(map(part_of, parts)))
        if isinstance(looked, str):
            self.failed.add(frozenset(cover))
            self.state.control.log(f"a cover could not be looked into: {looked}")
            return False
        total = looked.between_us
        for record in parts:
            us = looked.parts.get((record.instance.id, record.nodes))
            if us is not None and us > 0:
                self.taken.setdefault(record.id, []).append(us)
                total += us
        if not self.best or total < self.whole_us:
            self.whole_us, self.best = total, list(cover)
        return True

    def moved(self, record: CandidateRecord) -> tuple[int, int]:
        if record.nodes not in self.bytes:
            self.bytes[record.nodes] = moved_bytes(self.state.model.graph, record.nodes)
        return self.bytes[record.nodes]

    def share(self, record: CandidateRecord) -> float:
        return min(1.0, record.cost.at() / self.whole_us) if self.whole_us else 0.0

    def seen(self) -> list[Seen]:
        found = []
        for name, times in self.taken.items():
            record = self.alone[name]
            weights, values = self.moved(record)
            found.append(
                Seen(
                    toolchain=record.instance.toolchain,
                    alone_us=record.cost.at(),
                    in_place_us=statistics.median(times),
                    weight_bytes=weights,
                    value_bytes=values,
                    share=self.share(record),
                )
            )
        return found

    def corrected(self, model: InPlace) -> list[CandidateRecord]:
        """All candidates, those measured with their costs within the model."""
        result = []
        for record in self.state.records:
            alone = self.alone.get(record.id, record)
            cost = alone.cost
            if cost.usable and cost.at() > 0:
                if record.id in self.taken:
                    cost = cost.in_model(statistics.median(self.taken[record.id]), "seen")
                elif self.share(alone) < 1.0:
                    added = model.added_us(
                        record.instance.toolchain, cost.at(), *self.moved(alone), self.share(alone)
                    )
                    cost = cost.in_model(cost.at() + added, "predicted")
            result.append(msgspec.structs.replace(record, cost=cost))
        return result


def ids(placement: Placement) -> list[str]:
    return [part.candidate for part in placement.partitions]


def _leaning_on(
    problem: Problem, name: str, records: dict[str, CandidateRecord], limit: int
) -> Problem:
    candidates = []
    for candidate in problem.candidates:
        ours = records[str(candidate.id)].instance.toolchain == name
        if len(candidate.nodes) > limit:
            candidate = msgspec.structs.replace(
                candidate, state="invalid", cost_us=None, reason="too large to learn from"
            )
        elif not ours and candidate.cost_us is not None:
            candidate = msgspec.structs.replace(candidate, cost_us=candidate.cost_us * AVOIDED)
        candidates.append(candidate)
    return msgspec.structs.replace(problem, candidates=tuple(candidates))
