"""How sure the choice is: ties, the probability that each choice is right, what to measure next.

A cost is a median of repeats and has a spread. What a better machine day, or more repeats, would
say is imitated by *resampling*: every candidate's cost is drawn anew from its own uncertainty, and
the problem is solved again. How often a candidate is chosen then is the probability that choosing
it is right. The expected loss of the present cover against the best of each draw is what knowing
everything would gain; how much of it knowing one candidate's cost alone would gain (expected value
of partial perfect information, by binning the draws on that cost) says what to measure next.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from collage_engine.search.check import check_cover
from collage_engine.search.search import Search
from collage_engine.search.sittings import ALIKE

if TYPE_CHECKING:
    from collage_engine.search.problem import (
        Answer,
        CandidateId,
        Problem,
        ProblemCandidate,
    )

BINS = 4
NINE_OF_TEN = 1.645
"""Standard deviations within which nine of ten draws lie."""


def spread_of(candidate: ProblemCandidate) -> tuple[float, float]:
    """Low and high end of a measured candidate's cost; both the cost when no spread is known."""
    cost = candidate.cost_us
    if cost is None:
        raise ValueError(f"candidate {candidate.id} is not measured")
    spread = candidate.spread_us
    if spread is None:
        return cost, cost
    if isinstance(spread, tuple):
        return min(spread[0], cost), max(spread[1], cost)
    return max(0.0, cost - spread), cost + spread


def overlap(
    ours: Sequence[ProblemCandidate], rival: ProblemCandidate, regret_us: float, drift: float = 0.0
) -> bool:
    """Whether a rival's loss lies within the spreads, its low end below the high end of ours, and
    what their sittings may be off.

    ``ours``: the chosen candidates on the rival's nodes; their scatter adds up as independent.
    ``drift``: between sittings, a share, independent too. One on the very same nodes was timed in
    the same rounds, where most of that cancels.
    """
    if len(ours) == 1 and set(ours[0].nodes) == set(rival.nodes):
        drift *= math.sqrt(1.0 - ALIKE)
    up = math.sqrt(sum((spread_of(c)[1] - (c.cost_us or 0.0)) ** 2 for c in ours))
    down = (rival.cost_us or 0.0) - spread_of(rival)[0]
    off = drift * math.hypot(rival.cost_us or 0.0, *(c.cost_us or 0.0 for c in ours))
    return regret_us <= up + down + off


def ties(problem: Problem, answer: Answer) -> dict[CandidateId, float]:
    """Candidates outside the cover that lose within the spreads, with their regrets."""
    chosen = {str(name) for name in answer.cover}
    owner = {n: c for c in problem.candidates if str(c.id) in chosen for n in c.nodes}
    found: dict[CandidateId, float] = {}
    for candidate in problem.candidates:
        regret = answer.regrets.get(candidate.id)
        if candidate.state != "measured" or regret is None or str(candidate.id) in chosen:
            continue
        ours = list({str(owner[n].id): owner[n] for n in candidate.nodes}.values())
        if overlap(ours, candidate, regret, problem.drift):
            found[candidate.id] = regret
    return found


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """How sure a choice is."""

    right: dict[CandidateId, float]
    """Candidate to the share of draws in which the best cover contains it (those seen at all)."""
    loss_us: float
    """Expected cost of the present cover above the best one: what perfect knowledge would gain."""
    settle: tuple[tuple[CandidateId, float], ...]
    """Candidates whose exact cost would gain the most, with that gain in us, most first."""
    draws: int


def doubt(
    problem: Problem,
    answer: Answer,
    *,
    repeats: Mapping[CandidateId, Sequence[float]] | None = None,
    same: Mapping[CandidateId, str] | None = None,
    draws: int = 200,
    time_limit_s: float = 30.0,
    seed: int = 0,
    search: Search | None = None,
    drift: float | None = None,
) -> Doubt:
    """Resample the costs and search again, ``draws`` times, or as often as the time allows; not at
    all where the graph is too wide for exact search.

    ``repeats``: single times of a candidate, to bootstrap its median from; without them its cost
    scatters by its spread (20th to 80th percentile of a normal distribution); without a spread it
    is certain. ``drift``: between sittings (:mod:`.sittings`), by default the problem's; most of it
    is common to candidates on the same nodes, which are timed in the same rounds. ``same``:
    candidates with equal keys share one measurement, hence one draw. ``search``: a search of this
    problem that may be repriced here (it is restored).
    """
    search = Search(problem) if search is None else search
    if search.wide:  # a draw takes as long as a search, and ends in another bound, not in a cover
        return Doubt(right={}, loss_us=0.0, settle=(), draws=0)
    drift = problem.drift if drift is None else drift
    rng = random.Random(seed)
    deadline = time.monotonic() + time_limit_s
    measured = [i for i in search.usable if problem.candidates[i].state == "measured"]
    groups: dict[str, list[int]] = {}
    for index in measured:
        name = problem.candidates[index].id
        key = (same or {}).get(name, f"\0{name}")
        groups.setdefault(key, []).append(index)
    vary = {
        key: found
        for key, members in groups.items()
        if (found := _scatter(problem.candidates[members[0]], repeats or {}, drift)) is not None
    }
    base = {i: problem.candidates[i].cost_us or 0.0 for i in measured}
    covers: dict[tuple[int, ...], int] = {}
    now = tuple(sorted(_indices(problem, answer.cover)))
    covers[now] = 0
    drawn = np.empty((draws, len(problem.candidates)))
    drawn[:] = [base.get(i, 0.0) for i in range(len(problem.candidates))]
    best: list[int] = []
    try:
        for draw in range(draws):
            costs: dict[int, float | None] = {}
            sitting: dict[frozenset[int], float] = {}
            for key, scatter in vary.items():
                nodes = frozenset(problem.candidates[groups[key][0]].nodes)
                if nodes not in sitting:
                    sitting[nodes] = rng.gauss(0.0, 1.0)
                factor = scatter.draw(rng, sitting[nodes])
                for index in groups[key]:
                    costs[index] = drawn[draw, index] = max(0.0, base[index] * factor)
            search.reprice(costs)
            cover = tuple(sorted(search.find(problem.pins, regrets=False).cover))
            best.append(covers.setdefault(cover, len(covers)))
            if time.monotonic() > deadline:
                drawn = drawn[: draw + 1]
                break
    finally:
        search.reprice(dict(base))
    totals = _totals(problem, search, list(covers), drawn)
    return _judge(problem, covers, totals, best, drawn, groups, vary)


class _Scatter:
    """Draws of a relative cost."""

    def __init__(self, sigma: float, repeats: Sequence[float], drift: float) -> None:
        self.sigma = sigma
        self.drift = drift
        self.repeats = list(repeats)
        self.centre = median(self.repeats) if self.repeats else 1.0

    def draw(self, rng: random.Random, sitting: float) -> float:
        """``sitting``: what candidates timed in the same rounds have in common, normal."""
        off = math.sqrt(ALIKE) * sitting + math.sqrt(1.0 - ALIKE) * rng.gauss(0.0, 1.0)
        if self.repeats:
            again = median(rng.choices(self.repeats, k=len(self.repeats)))
            return again / self.centre * math.exp(off * self.drift / NINE_OF_TEN)
        return rng.gauss(1.0, self.sigma)


def _scatter(
    candidate: ProblemCandidate, repeats: Mapping[CandidateId, Sequence[float]], drift: float
) -> _Scatter | None:
    """None when the cost is certain."""
    single = repeats.get(candidate.id, ())
    if len(single) > 1 and median(single) > 0:
        return _Scatter(0.0, single, drift)
    low, high = spread_of(candidate)
    if high <= low or not candidate.cost_us:
        return None
    return _Scatter((high - low) / 2 / 0.8416 / candidate.cost_us, (), drift)


def _indices(problem: Problem, cover: Sequence[CandidateId]) -> list[int]:
    by_id = {str(c.id): i for i, c in enumerate(problem.candidates)}
    return [by_id[str(name)] for name in cover]


def _totals(
    problem: Problem, search: Search, covers: list[tuple[int, ...]], drawn: np.ndarray
) -> np.ndarray:
    """Cost of every cover (column) at every draw (row); transitions do not scatter."""
    totals = np.empty((drawn.shape[0], len(covers)))
    for column, cover in enumerate(covers):
        ids = [problem.candidates[i].id for i in cover]
        cost = check_cover(problem, ids)
        if not isinstance(cost, float):
            raise AssertionError(f"a drawn cover is none: {cost}")
        rest = cost - math.fsum(problem.candidates[i].cost_us or 0.0 for i in cover)
        totals[:, column] = drawn[:, list(cover)].sum(axis=1) + rest
    return totals


def _judge(
    problem: Problem,
    covers: dict[tuple[int, ...], int],
    totals: np.ndarray,
    best: list[int],
    drawn: np.ndarray,
    groups: dict[str, list[int]],
    vary: dict[str, _Scatter],
) -> Doubt:
    names = [c.id for c in problem.candidates]
    counts = np.bincount(best, minlength=len(covers))
    right: dict[CandidateId, float] = {names[i]: 0.0 for i in next(iter(covers))}
    for cover, column in covers.items():
        for index in cover:
            right[names[index]] = right.get(names[index], 0.0) + float(counts[column]) / len(best)
    means = totals.mean(axis=0)
    loss = float((totals[:, 0] - totals.min(axis=1)).mean())
    gains: list[tuple[CandidateId, float]] = []
    at_all = {index for cover in covers for index in cover}
    for key in vary:
        index = groups[key][0]
        if not at_all.intersection(groups[key]):
            continue
        order = np.argsort(drawn[:, index], kind="stable")
        parts = [p for p in np.array_split(order, BINS) if len(p)]
        known = sum(len(p) * totals[p].mean(axis=0).min() for p in parts) / len(order)
        gain = float(means.min() - known)
        if gain > 0:
            gains.append((names[index], gain))
    gains.sort(key=lambda item: -item[1])
    return Doubt(right=right, loss_us=max(0.0, loss), settle=tuple(gains), draws=len(best))
