"""Refinement on end-to-end time, the paper's second level: whole covers are built and timed.

``search.refine`` asks for measurements of covers; here each of them becomes the proposal of a
trial, timed beside the first cover that runs, so that what is compared is free of the machine's
drift.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost, invalid
from collage_engine.search.bayesian_proposer import BayesianProposer
from collage_engine.search.measured_covers import MeasuredCover, cover_key
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.search.refine import CoverMeasurement, Measuring, Refinement, Result, refine
from collage_engine.trials.proposals import Proposal, Proposer, Trial


@dataclass(frozen=True, kw_only=True)
class RefinementSettings:
    """How exactly covers are timed."""

    rounds: int = 7
    """Rounds of a cover, each beside one of the start; chosen."""
    confirmed_rounds: int = 21
    """Rounds of a cover that was timed before: what is asked twice is to be decided; chosen."""
    runs_per_profile: int = 15
    """Runs of the model in a cover's profile; chosen."""


REFINEMENT = RefinementSettings()


def refine_covers(
    problem: Problem,
    start: Sequence[Sequence[CandidateId]],
    by_id: Mapping[str, Candidate],
    budget_s: float,
    *,
    on_trial: Callable[[MeasuredCover], None] = lambda measured: None,
    stop: Callable[[], bool] = lambda: False,
    settings: RefinementSettings = REFINEMENT,
) -> Proposer[Proposal, Refinement]:
    """Propose covers until the budget is spent, learning from what each of them takes whole.

    Args:
        problem: The search's.
        start: Covers, the best estimate first; they are timed first.
        by_id: The candidates by id. Those with equal keys do equal work, and what is learnt of one
            holds for all.
        budget_s: Seconds.
        on_trial: Is told of each cover that was timed.
        stop: Is asked before each trial.
        settings: How exactly covers are timed.
    """
    same: dict[CandidateId, str] = {c.id: c.key for c in by_id.values() if c.key}
    return propose_measured(
        refine(
            problem,
            start,
            method=BayesianProposer(problem, same=same),
            time_budget_s=budget_s,
            stop=stop,
            on_trial=on_trial,
        ),
        by_id,
        settings,
    )


def propose_measured(
    measuring: Measuring[Result],
    by_id: Mapping[str, Candidate],
    settings: RefinementSettings = REFINEMENT,
) -> Proposer[Proposal, Result]:
    """Propose the trial of each cover that a search wants measured; return the search's result.

    Args:
        measuring: Yields covers, is sent their measurements; not started yet.
        by_id: The candidates by id.
        settings: How exactly covers are timed; one that was timed before is timed more exactly.
    """
    timed: set[frozenset[str]] = set()
    measurement: CoverMeasurement | None = None
    while True:
        try:
            cover = next(measuring) if measurement is None else measuring.send(measurement)
        except StopIteration as finished:
            result: Result = finished.value
            return result
        again = cover_key(cover) in timed
        timed.add(cover_key(cover))
        trial: Trial = yield Proposal(
            cover=tuple(by_id[str(name)] for name in cover),
            rounds=settings.confirmed_rounds if again else settings.rounds,
            profiles=1,
            runs_per_profile=settings.runs_per_profile,
        )
        measurement = measurement_of(trial)


def measurement_of(trial: Trial) -> CoverMeasurement:
    """Return the measurement of a cover by its trial.

    Invalid where it could not be built or run.
    """
    if not trial.times_us:
        return CoverMeasurement(cost=invalid(trial.failure or "it failed while it was timed"))
    cost = Cost(
        state="measured",
        median_us=statistics.median(trial.times_us),
        low_us=float(np.percentile(trial.times_us, 20)),
        high_us=float(np.percentile(trial.times_us, 80)),
        count=len(trial.times_us),
        repeats_us=trial.times_us,
    )
    inside: dict[CandidateId, float] = {name: us for name, us in trial.partitions_us.items() if us}
    return CoverMeasurement(cost=cost, inside=inside)
