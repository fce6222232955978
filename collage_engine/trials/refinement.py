"""Refinement on end-to-end time, the paper's second level: whole covers are built and timed.

``search.refine`` proposes covers; here each is built in a child, run in a child of its own, and
timed in turn with the start cover, so that what is compared is free of the machine's drift.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.build.built import attribute_kernels
from collage_engine.control.run_control import RunControl
from collage_engine.machine.worker import Worker
from collage_engine.records.candidate import CoverPart
from collage_engine.records.cost import Cost, invalid
from collage_engine.records.errors import Cancelled, CollageError, MeasureError
from collage_engine.search.bayesian_proposer import BayesianProposer
from collage_engine.search.measured_covers import Cover, MeasuredCover, cover_key
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.search.refine import Refinement, refine
from collage_engine.trials.contender import Contender, ContenderResult, Sample
from collage_engine.trials.runner import ConfirmSettings, Field

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

ROUNDS = 7
"""Per trial, each against the start in the same round."""
CONFIRMED = 21
"""Rounds of a cover that was measured before: what is asked twice is to be decided."""
PROFILED = 15
"""Runs that are looked into, per trial."""


class EndToEnd:
    """Measures covers whole. The first one it is given is the reference of all others."""

    def __init__(
        self,
        model: ImportedModel,
        parts_of: Callable[[Sequence[CandidateId]], tuple[CoverPart, ...]],
        inputs: Mapping[str, np.ndarray],
        truth: Mapping[str, np.ndarray],
        tolerance: float,
        folder: Path,
        control: RunControl,
        more: Sequence[Sample] = (),
    ) -> None:
        self._parts_of = parts_of
        settings = ConfirmSettings(hopeless_beyond=1e9, drop_beyond=1e9, contenders=1e9)
        self._field = Field(
            model,
            inputs,
            truth,
            tolerance,
            folder,
            settings,
            control.cancelled,
            lambda done, total, now: None,
            more,
        )
        self._builder = Worker(
            "collage_engine.build.build_job:BuildJob", name="collage-refine-build"
        )
        self._reference: ContenderResult | None = None
        self._reference_us: float | None = None
        self._count = 0
        self._measured: set[frozenset[str]] = set()
        self._inside: dict[frozenset[str], dict[CandidateId, float]] = {}

    def close(self) -> None:
        self._builder.close()
        self._field.close()

    def error(self, cover: Cover) -> float | str:
        """The largest error of the whole model; the reason when it cannot be built or run."""
        outcome = self._opened(cover)
        self._field.leave(outcome)
        found = outcome.max_rel_error
        return outcome.reason or "it has no error" if found is None else found

    def _opened(self, cover: Cover) -> ContenderResult:
        """The cover, built, loaded in a child and compared with the truth."""
        self._count += 1
        contender = Contender(
            name=f"trial {self._count}", kind="collage", cover=self._parts_of(cover)
        )
        outcome = ContenderResult(contender=contender)
        self._field.build_one(self._builder, self._count, outcome)
        if outcome.reason is None:
            self._field.open(outcome)
        return outcome

    def measure(self, cover: Cover) -> Cost:
        """What the cover takes whole; invalid with the reason when it cannot be built or run. One
        that was measured before is measured more exactly."""
        again = cover_key(cover) in self._measured
        self._measured.add(cover_key(cover))
        outcome = self._opened(cover)
        if outcome.reason is not None:
            return invalid(outcome.reason)
        if self._reference is None:
            rounds = self._field.rounds([outcome], ROUNDS, 30.0, steps=False)
            times = [median for median, _ in rounds[id(outcome)]]
            self._reference = outcome
            self._reference_us = statistics.median(times)
            self._look(cover, outcome, times)
        else:
            times = self._against_reference(outcome, CONFIRMED if again else ROUNDS)
            self._look(cover, outcome, times)
            self._field.leave(outcome)
        if not times:
            return invalid(outcome.reason or "it failed while it was timed")
        return Cost(
            state="measured",
            median_us=statistics.median(times),
            low_us=float(np.percentile(times, 20)),
            high_us=float(np.percentile(times, 80)),
            count=len(times),
            repeats_us=tuple(times),
        )

    def inside(self, cover: Cover) -> Mapping[CandidateId, float]:
        """What the partitions of a cover took when it was measured whole, in µs, all of them and
        what is between them together that time; nothing where it could not be looked into."""
        return self._inside.get(cover_key(cover), {})

    def _look(self, cover: Cover, outcome: ContenderResult, times: Sequence[float]) -> None:
        built = outcome.built
        if built is None or not times or outcome.reason is not None:
            return
        try:
            kernels = self._field.profile(outcome, PROFILED)
        except Cancelled:
            raise
        except CollageError:
            return  # it was timed; looking inside is extra
        taken, outside = attribute_kernels(built.kernels, [(k.kernel, k.us) for k in kernels])
        total = sum(taken) + sum(us for _, us in outside)
        if total <= 0:
            return
        # Looking takes time of its own, and the machine's speed is another one.
        scale = statistics.median(times) / total
        found = {
            (p.instance.id, p.operators): us * scale
            for p, us in zip(built.parts, taken, strict=False)
        }
        wanted = {
            name: (p.instance.id, tuple(p.operators))
            for name, p in zip(cover, self._parts_of(cover), strict=True)
        }
        self._inside[cover_key(cover)] = {
            name: found[key] for name, key in wanted.items() if found.get(key)
        }

    def together(self, covers: Sequence[Cover], rounds: int) -> list[list[float]]:
        """Times of these covers, in µs, round by round in turn; all of them loaded at once."""
        opened = [self._opened(cover) for cover in covers]
        broken = next((o.reason for o in opened if o.reason is not None), None)
        if broken is not None:
            raise MeasureError(f"a cover cannot be timed again: {broken}")
        taken = self._field.rounds(opened, rounds, 600.0, steps=False)
        for outcome in opened:
            self._field.leave(outcome)
        return [[us for us, _ in taken[id(outcome)]] for outcome in opened]

    def _against_reference(self, outcome: ContenderResult, count: int) -> list[float]:
        """Times of the outcome as they were had the reference always taken what it took first."""
        reference = self._reference
        assert reference is not None and self._reference_us is not None
        rounds = self._field.rounds([reference, outcome], count, 30.0, steps=False)
        ours, theirs = rounds.get(id(outcome), []), rounds.get(id(reference), [])
        return [
            self._reference_us * us / base
            for (us, _), (base, _) in zip(ours, theirs, strict=False)
            if us == us and base == base
        ]


def refine_covers(
    problem: Problem,
    start: Sequence[Sequence[CandidateId]],
    measured_whole: EndToEnd,
    budget_s: float,
    on_trial: Callable[[MeasuredCover], None],
    lower_bound_us: float | None,
    control: RunControl,
    same: Mapping[CandidateId, str] | None = None,
) -> Refinement:
    """Search on end-to-end time from these covers until the budget is spent.

    ``same``: candidates with equal keys do equal work; what is learnt of one holds for all.
    """
    try:
        return refine(
            problem,
            start,
            measured_whole.measure,
            method=BayesianProposer(problem, same=same),
            inside=measured_whole.inside,
            time_budget_s=budget_s,
            stop=control.cancelled.is_set,
            on_trial=on_trial,
            lower_bound_us=lower_bound_us,
        )
    finally:
        measured_whole.close()
