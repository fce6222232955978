"""How sure the choice is: ties, and the probability that each choice is right.

A cost is a median of repeats and has a spread. What a better machine day, or more repeats, would
say is imitated by *resampling*: every candidate's cost is drawn anew from its own uncertainty, and
the problem is solved again. How often a candidate is chosen then is the probability that choosing
it is right.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from collage_engine.search.run_to_run_drift import SHARED_DRIFT_VARIANCE
from collage_engine.search.search import Search

if TYPE_CHECKING:
    from collage_engine.search.problem import (
        Answer,
        CandidateId,
        Problem,
        ProblemCandidate,
    )

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


def choice_probability(
    problem: Problem,
    answer: Answer,
    *,
    repeats: Mapping[CandidateId, Sequence[float]] | None = None,
    same: Mapping[CandidateId, str] | None = None,
    draws: int = 200,
    time_limit_s: float = 30.0,
    seed: int = 0,
    search: Search | None = None,
) -> dict[CandidateId, float]:
    """Return the share of draws in which the best cover contains a candidate.

    The costs are resampled, and the problem is searched again, as often as asked or as the time
    allows. Nothing is drawn where the graph is too wide for exact search: a draw would take as long
    as a search, and end in another bound, not in a cover.

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

    Returns:
        By candidate that is in the answer's cover or in that of a draw, its share; empty where
        nothing is drawn. The problem's drift between sessions (:mod:`.run_to_run_drift`) scatters
        all costs; most of it is common to candidates on the same nodes, which are timed in the
        same rounds.
    """
    search = Search(problem) if search is None else search
    if search.solver.too_wide:
        return {}
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
        if (scatter := _scatter(problem.candidates[members[0]], repeats or {}, problem.drift))
        is not None
    }
    covers = _draw(problem, search, groups, scatters, draws, time_limit_s, seed)
    if not covers:
        return {}
    times = Counter(problem.candidates[index].id for cover in covers for index in cover)
    chosen = {str(name) for name in answer.cover}
    return {
        c.id: times[c.id] / len(covers)
        for c in problem.candidates
        if c.id in times or str(c.id) in chosen
    }


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


def _draw(
    problem: Problem,
    search: Search,
    groups: Mapping[str, list[int]],
    scatters: Mapping[str, _Scatter],
    draws: int,
    time_limit_s: float,
    seed: int,
) -> list[Sequence[int]]:
    """Draw costs and search at them.

    Returns:
        The best cover of each draw, as numbers of candidates.
    """
    rng = random.Random(seed)
    deadline = time.monotonic() + time_limit_s
    base = {i: problem.candidates[i].cost_us or 0.0 for found in groups.values() for i in found}
    covers: list[Sequence[int]] = []
    try:
        for _ in range(draws):
            costs: dict[int, float | None] = {}
            session: dict[frozenset[int], float] = {}
            for key, scatter in scatters.items():
                nodes = frozenset(problem.candidates[groups[key][0]].nodes)
                if nodes not in session:
                    session[nodes] = rng.gauss(0.0, 1.0)
                factor = scatter.draw(rng, session[nodes])
                for index in groups[key]:
                    costs[index] = max(0.0, base[index] * factor)
            search.reprice(costs)
            covers.append(search.find(problem.pins, regrets=False).cover)
            if time.monotonic() > deadline:
                break
    finally:
        search.reprice(dict(base))
    return covers
