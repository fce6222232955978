"""Refinement on end-to-end time, the paper's second level: whole covers are built and timed.

``search.refine`` proposes covers; here each of them becomes a trial, timed beside the start cover,
so that what is compared is free of the machine's drift.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage_engine.records.candidate import CoverPart
from collage_engine.records.cost import Cost, invalid
from collage_engine.search.bayesian_proposer import BayesianProposer
from collage_engine.search.measured_covers import Cover, MeasuredCover, cover_key
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.search.refine import Refinement, refine
from collage_engine.trials.proposals import Proposal, Trial


@dataclass(frozen=True, kw_only=True)
class RefinementSettings:
    """How exactly covers are timed."""

    rounds: int = 7
    """Rounds of a cover, each beside one of the start; chosen."""
    confirmed_rounds: int = 21
    """Rounds of a cover that was timed before: what is asked twice is to be decided; chosen."""
    runs_per_profile: int = 15
    """Runs of the model in a cover's profile; chosen."""


class CoverTrials:
    """Costs of whole covers, by trials. The first cover that runs is the reference of all others.

    Args:
        run: tries a proposal, as ``TrialRunner.run`` does.
        parts_of: the partitions of a cover.
        settings: how exactly covers are timed.
    """

    def __init__(
        self,
        run: Callable[[Proposal], Trial],
        parts_of: Callable[[Sequence[CandidateId]], tuple[CoverPart, ...]],
        settings: RefinementSettings | None = None,
    ) -> None:
        self._run = run
        self._parts_of = parts_of
        self._settings = settings or RefinementSettings()
        self._timed: set[frozenset[str]] = set()
        self._inside: dict[frozenset[str], dict[CandidateId, float]] = {}

    def measure(self, cover: Cover) -> Cost:
        """What the cover takes whole; one that was timed before is timed more exactly.

        Returns:
            The cost; invalid with the reason when the cover cannot be built or run.
        """
        again = cover_key(cover) in self._timed
        self._timed.add(cover_key(cover))
        parts = self._parts_of(cover)
        trial = self._run(
            Proposal(
                cover=parts,
                rounds=self._settings.confirmed_rounds if again else self._settings.rounds,
                profiles=1,
                runs_per_profile=self._settings.runs_per_profile,
            )
        )
        if not trial.times_us:
            return invalid(trial.failure or "it failed while it was timed")
        found = {
            name: trial.partitions_us.get((part.instance.id, tuple(part.operators)))
            for name, part in zip(cover, parts, strict=True)
        }
        self._inside[cover_key(cover)] = {name: us for name, us in found.items() if us}
        return Cost(
            state="measured",
            median_us=statistics.median(trial.times_us),
            low_us=float(np.percentile(trial.times_us, 20)),
            high_us=float(np.percentile(trial.times_us, 80)),
            count=len(trial.times_us),
            repeats_us=trial.times_us,
        )

    def inside(self, cover: Cover) -> Mapping[CandidateId, float]:
        """What the partitions of a cover took when it was timed whole, in µs; as far as known."""
        return self._inside.get(cover_key(cover), {})


def refine_covers(
    problem: Problem,
    start: Sequence[Sequence[CandidateId]],
    trials: CoverTrials,
    budget_s: float,
    *,
    on_trial: Callable[[MeasuredCover], None] = lambda measured: None,
    stop: Callable[[], bool] = lambda: False,
    same: Mapping[CandidateId, str] | None = None,
) -> Refinement:
    """Search on end-to-end time from these covers until the budget is spent.

    Args:
        problem: the search's.
        start: covers, the best estimate first; they are timed first.
        trials: times covers.
        budget_s: seconds.
        on_trial: is told of each cover that was timed.
        stop: asked before each trial.
        same: candidates with equal keys do equal work; what is learnt of one holds for all.
    """
    return refine(
        problem,
        start,
        trials.measure,
        method=BayesianProposer(problem, same=same),
        inside=trials.inside,
        time_budget_s=budget_s,
        stop=stop,
        on_trial=on_trial,
    )
