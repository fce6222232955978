"""A run's promise on accuracy: where it is made, on which samples, and which covers keep it.

``trials.accuracy`` brackets the fastest cover within the tolerance; ``trials.error_propagation``
says how candidates' errors arrive at the model's outputs. Here both are put to work for a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.control.run_control import RunControl
from collage_engine.records.accuracy import Accuracy, AccuracyTrial
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost_table import CostTable
from collage_engine.records.counted import counted
from collage_engine.records.precision import FLOAT32, is_reduced
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.search.problem import Problem
from collage_engine.trials.accuracy import (
    ACCURACY,
    KeptTolerance,
    TriedCover,
    WiderProblem,
    keep_tolerance,
)
from collage_engine.trials.contender import Sample
from collage_engine.trials.error_propagation import (
    factors_of,
    isolated_errors,
    reduced_of,
    weighed,
)
from collage_engine.trials.proposals import Proposer, Trial
from collage_engine.trials.race import RaceResult

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

MORE_SAMPLES = 3
"""Further random inputs on which the tolerance must be kept; chosen. The user's own are taken as
said."""
COVERS = 2
"""Covers within the tolerance that are confirmed, the one in float32 not counted; chosen."""


Mixed = Callable[
    [Mapping[int, float], Mapping[tuple[str, ...], float]],
    tuple[Problem, Sequence[Candidate], CostTable],
]
"""Factors of errors by graph index, errors of covers → the problem with more candidates, all of its
candidates, and their costs."""


def is_promised(settings: RunSettings) -> bool:
    """Tell whether covers are built for their error before the confirmation."""
    return settings.precision != FLOAT32 or settings.tolerance is not None


@dataclass(frozen=True, kw_only=True)
class ToleranceInput:
    """What keeping the tolerance is given.

    Attributes:
        model: the model.
        problem: the search's.
        candidates: all candidates.
        costs: what is known of their costs and errors.
        samples: on all of them the tolerance must be kept.
        tolerance: on the largest relative error of the model's outputs.
        widened: measures what lazy measuring had left out, and gives all costs; asked when the
            fastest cover breaks the tolerance.
        mixed: adds candidates in two precisions and gives the problem of all; asked then, too.
        control: of the run: ends the following of errors through the model, and takes warnings.
        on_step: called before each step: covers so far, covers at most, and what is at work.
    """

    model: ImportedModel
    problem: Problem
    candidates: Sequence[Candidate]
    costs: CostTable
    samples: Sequence[Sample]
    tolerance: float
    widened: Callable[[], CostTable]
    mixed: Mixed
    control: RunControl
    on_step: Callable[[int, int, str], None] = lambda done, total, now: None


def covers_within(given: ToleranceInput) -> Proposer[tuple[Candidate, ...], KeptTolerance]:
    """Propose covers until the fastest one within the tolerance on all samples is found.

    Args:
        given: The model, its candidates with their costs, and the tolerance.

    Returns:
        A generator that yields covers, is sent the trial of each, and returns the covers that
        keep the tolerance, and all that were tried.
    """
    by_id = {candidate.id: candidate for candidate in given.candidates}
    errors: dict[tuple[str, ...], float] = {}
    done = 0

    def step(now: str) -> None:
        given.on_step(done, max(ACCURACY.tries, done + 1), now)

    def weigh() -> WiderProblem:
        step("what was left unmeasured")
        costs = given.widened()
        step("how far errors are carried")
        inputs = [sample.inputs for sample in given.samples]
        factors = factors_of(given.model, given.candidates, costs, inputs, given.control)
        step("partitions in two precisions")
        problem, candidates, costs = given.mixed(factors, errors)
        by_id.update({candidate.id: candidate for candidate in candidates})
        return WiderProblem(
            problem=problem,
            errors=isolated_errors(candidates, costs),
            reduced=reduced_of(candidates),
            arriving=weighed(given.model.graph, candidates, costs, factors),
        )

    procedure = keep_tolerance(
        given.problem,
        isolated_errors(given.candidates, given.costs),
        reduced_of(given.candidates),
        given.tolerance,
        weigh,
    )
    trial: Trial | None = None
    while True:
        try:
            cover = next(procedure) if trial is None else procedure.send(trial)
        except StopIteration as finished:
            kept: KeptTolerance = finished.value
            return kept
        step("the error of a placement, end to end")
        done += 1
        trial = yield tuple(by_id[str(name)] for name in cover)
        if trial.max_rel_error is not None:
            errors[tuple(map(str, cover))] = trial.max_rel_error


def summary_of(kept: KeptTolerance, tolerance: float) -> str:
    """Return what was found, in one phrase."""
    text = f"{counted(len(kept.tried), 'placement')} run for their error"
    best = kept.within[0] if kept.within else None
    if best is not None and best.max_rel_error is not None:
        text += f", the best within {tolerance:g} has {best.max_rel_error:.1e}"
    return text


def chosen_covers(kept: KeptTolerance) -> list[TriedCover]:
    """Return the covers that are confirmed.

    They are the fastest ones within the tolerance (``COVERS`` at most), and the one in float32
    where it keeps the tolerance, too.
    """
    found = list(kept.within[:COVERS])
    if kept.full is not None and kept.full in kept.within and kept.full not in found:
        found.append(kept.full)
    return found


def accuracy_of(
    settings: RunSettings,
    tolerance: float,
    samples: int,
    kept: KeptTolerance | None,
    race_result: RaceResult,
    instances: Mapping[str, ToolchainInstance],
) -> Accuracy | None:
    """Return the record of what the run promised on accuracy, and how it was kept.

    Args:
        settings: The run's settings.
        tolerance: The bound on ``max|y-r| / max|r|`` of the outputs.
        samples: On how many samples it was checked.
        kept: What ``covers_within`` found; None: the run made no promise.
        race_result: The times and errors of the contenders.
        instances: The toolchain instance of each candidate, by the candidate's id.

    Returns:
        The record; None for a run that made no promise.
    """
    if kept is None:
        return None
    full = [
        o
        for o in race_result.results
        if o.contender.kind == "collage" and not o.reduced and o.measured_us is not None
    ]
    best = min(full, key=lambda o: o.measured_us or 0.0, default=None)
    return Accuracy(
        precision=settings.precision,
        tolerance=tolerance,
        samples=samples,
        max_rel_error=_number(race_result.winner.max_rel_error),
        float32_us=None if best is None else best.measured_us,
        float32_max_rel_error=None if best is None else _number(best.max_rel_error),
        tried=tuple(
            AccuracyTrial(
                estimated_us=each.cost_us,
                partitions=len(each.cover),
                reduced=sum(is_reduced(instances[str(name)]) for name in each.cover),
                max_rel_error=_number(each.max_rel_error),
                reason=each.reason,
            )
            for each in kept.tried
        ),
    )


def _number(value: float | None) -> float | None:
    """Return a number that JSON can hold: None for none, infinity and NaN."""
    return None if value is None or not np.isfinite(value) else value
