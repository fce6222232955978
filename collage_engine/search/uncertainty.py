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
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from collage_engine.search.check import check_cover
from collage_engine.search.run_to_run_drift import SHARED_DRIFT_VARIANCE
from collage_engine.search.search import Search

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collage_engine.search.problem import (
        Answer,
        CandidateId,
        Problem,
        ProblemCandidate,
    )

    Floats = NDArray[np.float64]

BINS = 4
"""Bins of draws by one candidate's cost, for what knowing that cost would gain (a count; chosen:
few enough that each has dozens of the usual draws)."""
MOST_AWAY = 50.0
"""Natural logarithm of a drawn cost over the known one, at most; chosen: it only has to be one that
a number can hold, whatever the drift."""
NINE_OF_TEN = 1.645
"""Standard deviations within which nine of ten draws of a normal distribution lie."""
TWENTY_TO_EIGHTY = 0.8416
"""Standard deviations from the mean to the 80th percentile of a normal distribution."""


def spread_of(candidate: ProblemCandidate) -> tuple[float, float]:
    """Return the low and high end of a measured candidate's cost, in microseconds.

    Both are the cost when no spread is known.

    Raises:
        ValueError: The candidate is not measured.
    """
    cost = candidate.cost_us
    if cost is None:
        raise ValueError(f"candidate {candidate.id} is not measured")
    spread = candidate.spread_us
    if spread is None:
        return cost, cost
    if isinstance(spread, tuple):
        return min(spread[0], cost), max(spread[1], cost)
    return max(0.0, cost - spread), cost + spread


def is_tie(
    ours: Sequence[ProblemCandidate], other: ProblemCandidate, regret_us: float, drift: float = 0.0
) -> bool:
    """Tell whether a candidate's regret lies within the spreads and the drift.

    Args:
        ours: The chosen candidates on the other's nodes; their scatter adds up as independent.
        other: A candidate that was not chosen.
        regret_us: Its regret in microseconds.
        drift: The drift between sessions, a share of the cost, independent too. A candidate on the
            very same nodes was timed in the same rounds, where most of the drift cancels.
    """
    if len(ours) == 1 and set(ours[0].nodes) == set(other.nodes):
        drift *= math.sqrt(1.0 - SHARED_DRIFT_VARIANCE)
    up = math.sqrt(sum((spread_of(c)[1] - (c.cost_us or 0.0)) ** 2 for c in ours))
    down = (other.cost_us or 0.0) - spread_of(other)[0]
    off = drift * math.hypot(other.cost_us or 0.0, *(c.cost_us or 0.0 for c in ours))
    return regret_us <= up + down + off


def ties(problem: Problem, answer: Answer) -> dict[CandidateId, float]:
    """Return the candidates outside the cover that are tied with it, with their regrets in us."""
    chosen = {str(name) for name in answer.cover}
    owner = {n: c for c in problem.candidates if str(c.id) in chosen for n in c.nodes}
    tied: dict[CandidateId, float] = {}
    for candidate in problem.candidates:
        regret = answer.regrets.get(candidate.id)
        if candidate.state != "measured" or regret is None or str(candidate.id) in chosen:
            continue
        ours = list({str(owner[n].id): owner[n] for n in candidate.nodes}.values())
        if is_tie(ours, candidate, regret, problem.drift):
            tied[candidate.id] = regret
    return tied


class ChoiceUncertainty(msgspec.Struct, frozen=True, kw_only=True):
    """How sure a choice of candidates is."""

    probability: dict[CandidateId, float]
    """Candidate to the share of draws in which the best cover contains it (those seen at all)."""
    loss_us: float
    """Expected cost of the present cover above the best one: what perfect knowledge would gain."""
    worth_measuring: tuple[tuple[CandidateId, float], ...]
    """Candidates whose exact cost would gain the most, with that gain in us, the most first."""
    draws: int


def choice_uncertainty(
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
) -> ChoiceUncertainty:
    """Resample the costs and search again, as often as asked or as the time allows.

    Nothing is drawn where the graph is too wide for exact search: a draw would take as long as a
    search, and end in another bound, not in a cover.

    Args:
        problem: The problem.
        answer: Its answer.
        repeats: Single times of a candidate, to bootstrap its median from. Without them its cost
            scatters by its spread (20th to 80th percentile of a normal distribution); without a
            spread it is certain.
        same: Candidates with equal keys share one measurement, hence one draw.
        draws: How many draws are wanted.
        time_limit_s: Time limit of all draws, in seconds.
        seed: Seed of the random numbers.
        search: A search of this problem that may be repriced here (it is restored).
        drift: The drift between sessions (:mod:`.run_to_run_drift`), by default the problem's; most
            of it is common to candidates on the same nodes, which are timed in the same rounds.
    """
    search = Search(problem) if search is None else search
    if search.solver.too_wide:
        return ChoiceUncertainty(probability={}, loss_us=0.0, worth_measuring=(), draws=0)
    drift = problem.drift if drift is None else drift
    usable = search.solver.usable
    measured = [i for i in usable if problem.candidates[i].state == "measured"]
    groups: dict[str, list[int]] = {}
    for index in measured:
        name = problem.candidates[index].id
        key = (same or {}).get(name, f"\0{name}")
        groups.setdefault(key, []).append(index)
    scatters = {
        key: scatter
        for key, members in groups.items()
        if (scatter := _scatter(problem.candidates[members[0]], repeats or {}, drift)) is not None
    }
    samples = _draw(problem, answer, search, groups, scatters, draws, time_limit_s, seed)
    return _judge(problem, samples, groups, list(scatters))


class _Scatter:
    """Draws of a relative cost."""

    def __init__(self, sigma: float, repeats: Sequence[float], drift: float) -> None:
        self.sigma = sigma
        self.drift = drift
        self.repeats = list(repeats)
        self.centre = median(self.repeats) if self.repeats else 1.0

    def draw(self, rng: random.Random, session: float) -> float:
        """Draw a cost relative to the known one.

        Args:
            rng: Random numbers.
            session: A standard normal number that candidates timed in the same rounds share.
        """
        own = rng.gauss(0.0, 1.0)
        off = (
            math.sqrt(SHARED_DRIFT_VARIANCE) * session
            + math.sqrt(1.0 - SHARED_DRIFT_VARIANCE) * own
        )
        if self.repeats:
            again = median(rng.choices(self.repeats, k=len(self.repeats))) / self.centre
        else:
            again = rng.gauss(1.0, self.sigma)
        away = off * self.drift / NINE_OF_TEN
        return again * math.exp(max(-MOST_AWAY, min(away, MOST_AWAY)))


def _scatter(
    candidate: ProblemCandidate, repeats: Mapping[CandidateId, Sequence[float]], drift: float
) -> _Scatter | None:
    """Return how a candidate's cost scatters; None when it is certain."""
    single = repeats.get(candidate.id, ())
    if len(single) > 1 and median(single) > 0:
        return _Scatter(0.0, single, drift)
    low, high = spread_of(candidate)
    if high <= low or not candidate.cost_us:
        return None
    return _Scatter((high - low) / 2 / TWENTY_TO_EIGHTY / candidate.cost_us, (), drift)


@dataclass(frozen=True, kw_only=True)
class _Samples:
    """Drawn costs, and the covers that are best at them."""

    drawn: Floats
    """[draw, candidate]: cost in us."""
    best: list[int]
    """Per draw the number of the best cover."""
    covers: dict[tuple[int, ...], int]
    """Cover, as ascending candidates, to its number; the present cover is number 0."""
    totals: Floats
    """[draw, cover]: cost in us."""


def _draw(
    problem: Problem,
    answer: Answer,
    search: Search,
    groups: Mapping[str, list[int]],
    scatters: Mapping[str, _Scatter],
    draws: int,
    time_limit_s: float,
    seed: int,
) -> _Samples:
    """Draw costs and search at them."""
    rng = random.Random(seed)
    deadline = time.monotonic() + time_limit_s
    base = {i: problem.candidates[i].cost_us or 0.0 for found in groups.values() for i in found}
    covers: dict[tuple[int, ...], int] = {
        tuple(sorted(_indices(problem, answer.cover))): 0,
    }
    drawn: Floats = np.empty((draws, len(problem.candidates)))
    drawn[:] = [base.get(i, 0.0) for i in range(len(problem.candidates))]
    best: list[int] = []
    try:
        for draw in range(draws):
            costs: dict[int, float | None] = {}
            session: dict[frozenset[int], float] = {}
            for key, scatter in scatters.items():
                nodes = frozenset(problem.candidates[groups[key][0]].nodes)
                if nodes not in session:
                    session[nodes] = rng.gauss(0.0, 1.0)
                factor = scatter.draw(rng, session[nodes])
                for index in groups[key]:
                    us = max(0.0, base[index] * factor)
                    costs[index] = us
                    drawn[draw, index] = us
            search.reprice(costs)
            cover = tuple(sorted(search.find(problem.pins, regrets=False).cover))
            best.append(covers.setdefault(cover, len(covers)))
            if time.monotonic() > deadline:
                drawn = drawn[: draw + 1]
                break
    finally:
        search.reprice(dict(base))
    totals = _totals(problem, list(covers), drawn)
    return _Samples(drawn=drawn, best=best, covers=covers, totals=totals)


def _indices(problem: Problem, cover: Sequence[CandidateId]) -> list[int]:
    by_id = {str(c.id): i for i, c in enumerate(problem.candidates)}
    return [by_id[str(name)] for name in cover]


def _totals(problem: Problem, covers: Sequence[tuple[int, ...]], drawn: Floats) -> Floats:
    """Return the cost of every cover (column) at every draw (row); transitions do not scatter."""
    totals: Floats = np.empty((drawn.shape[0], len(covers)))
    for column, cover in enumerate(covers):
        ids = [problem.candidates[i].id for i in cover]
        cost = check_cover(problem, ids)
        if not isinstance(cost, float):
            raise AssertionError(f"what was found at drawn costs is not a cover: {cost}")
        rest = cost - math.fsum(problem.candidates[i].cost_us or 0.0 for i in cover)
        totals[:, column] = drawn[:, list(cover)].sum(axis=1) + rest
    return totals


def _judge(
    problem: Problem, samples: _Samples, groups: Mapping[str, list[int]], uncertain: Sequence[str]
) -> ChoiceUncertainty:
    """Compute probabilities and gains from the draws; ``uncertain``: groups that scatter."""
    names = [c.id for c in problem.candidates]
    covers, totals, best = samples.covers, samples.totals, samples.best
    counts = np.bincount(best, minlength=len(covers))
    probability: dict[CandidateId, float] = {names[i]: 0.0 for i in next(iter(covers))}
    for cover, column in covers.items():
        for index in cover:
            share = float(counts[column]) / len(best)
            probability[names[index]] = probability.get(names[index], 0.0) + share
    means = totals.mean(axis=0)
    loss = float((totals[:, 0] - totals.min(axis=1)).mean())
    gains: list[tuple[CandidateId, float]] = []
    in_a_cover = {index for cover in covers for index in cover}
    for key in uncertain:
        index = groups[key][0]
        if not in_a_cover.intersection(groups[key]):
            continue
        order = np.argsort(samples.drawn[:, index], kind="stable")
        parts = [p for p in np.array_split(order, BINS) if len(p)]
        known = sum(len(p) * totals[p].mean(axis=0).min() for p in parts) / len(order)
        gain = float(means.min() - known)
        if gain > 0:
            gains.append((names[index], gain))
    gains.sort(key=lambda item: -item[1])
    return ChoiceUncertainty(
        probability=probability,
        loss_us=max(0.0, loss),
        worth_measuring=tuple(gains),
        draws=len(best),
    )
