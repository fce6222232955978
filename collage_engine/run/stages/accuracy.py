"""The step that keeps a promised tolerance: covers are run for their error before they compete."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.model.importer import ImportedModel
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost_table import CostTable
from collage_engine.records.errors import Cancelled
from collage_engine.records.placement import Placement
from collage_engine.records.work import work_of_operators
from collage_engine.run.contenders import with_eligibility
from collage_engine.run.problem_data import ProblemData, candidates_of
from collage_engine.run.stages.samples import RunSamples
from collage_engine.run.task import RunTask
from collage_engine.search.problem import Problem
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.toolchains.registry import about
from collage_engine.trials.accuracy import KeptTolerance
from collage_engine.trials.baselines import COLLAGE
from collage_engine.trials.contender import Contender
from collage_engine.trials.error_propagation import isolated_errors
from collage_engine.trials.mixed_precision import (
    LEVELS,
    burdens,
    mixed_candidates,
    products_of,
    to_mix,
)
from collage_engine.trials.proposals import Trial, run_proposals
from collage_engine.trials.race import Race
from collage_engine.trials.tolerance import (
    ToleranceInput,
    chosen_covers,
    covers_within,
    is_promised,
    summary_of,
)
from collage_engine.wording import stages as say

WORTH_TRYING_S = 10.0
"""Seconds below which no cover is run for its error; chosen: one is built and loaded in some."""
WORST_OF_SAMPLES = 1.1
"""Factor from the error on one sample to the worst error on several; chosen."""


@dataclass(frozen=True, kw_only=True)
class AccuracyResult:
    """Covers that keep the tolerance."""

    data: ProblemData
    placements: tuple[Placement, ...]
    kept: KeptTolerance | None
    """None: no tolerance was promised."""


def keep_tolerance(
    task: RunTask,
    data: ProblemData,
    placements: tuple[Placement, ...],
    samples: RunSamples,
    measuring: Measuring,
    race: Race,
    budget: RunBudget,
    control: RunControl,
) -> AccuracyResult:
    """Replace the fastest covers by the fastest that keep a promised tolerance end to end.

    Where none keeps it, the placements stay as they are and the user is warned; the race checks the
    tolerance of each.
    """
    unchanged = AccuracyResult(data=data, placements=placements, kept=None)
    if not is_promised(data.settings):
        return unchanged
    seconds = budget.to_improve_s
    if seconds < WORTH_TRYING_S or task.is_quick:
        if not task.is_quick:
            control.cut("accuracy")
        return unchanged
    model = task.open_model.model
    part = control.within(seconds)
    deadline = time.monotonic() + seconds
    wider = _WiderCandidates(model, data, measuring, samples.tolerance, deadline)
    with control.stage("accuracy") as report:
        given = ToleranceInput(
            model=model,
            problem=data.problem(),
            candidates=data.candidates,
            costs=data.costs,
            samples=samples.all,
            tolerance=samples.tolerance,
            widened=wider.measure_rest,
            mixed=wider.add_mixed,
            control=part,
            on_step=report.progress,
        )
        try:

            def run(cover: tuple[Candidate, ...]) -> Trial:
                part.check()
                contender = Contender(name=COLLAGE, kind="collage", cover=cover)
                return race.try_cover(with_eligibility(data, contender), ends_at=deadline)

            kept = run_proposals(covers_within(given), run)
        except Cancelled:
            control.cut("accuracy")
            return unchanged
        report.detail = summary_of(kept, samples.tolerance)
    data = wider.data
    known = {frozenset(candidates_of(p)): p for p in placements}
    problem = data.problem()
    found = tuple(
        known.get(frozenset(map(str, tried.cover)))
        or data.placement(tried.cover, problem, tried.cost_us)
        for tried in chosen_covers(kept)
    )
    if not found:
        control.warn(say.TOLERANCE_NOT_KEPT.format(tolerance=f"{samples.tolerance:g}"))
    return AccuracyResult(
        data=data,
        placements=found or placements,
        kept=kept,
    )


class _WiderCandidates:
    """The candidates of the search for covers within the tolerance, as they become more."""

    def __init__(
        self,
        model: ImportedModel,
        data: ProblemData,
        measuring: Measuring,
        tolerance: float,
        deadline: float,
    ) -> None:
        self.model = model
        self.data = data
        self.measuring = measuring
        self.tolerance = tolerance
        self.deadline = deadline

    def measure_rest(self) -> CostTable:
        """Measure what was left out for being slower than what turned out to be inadmissible."""
        costs = self.measuring.rest(self.data.candidates, self.data.costs, self.deadline)
        self.data = self.data.with_costs(costs)
        return costs

    def add_mixed(
        self, factors: Mapping[int, float], errors: Mapping[tuple[str, ...], float]
    ) -> tuple[Problem, Sequence[Candidate], CostTable]:
        """Measure candidates in two precisions that could keep the tolerance.

        Args:
            factors: How far errors are carried, by graph index.
            errors: Errors of covers that were run.

        Returns:
            The problem of all candidates, the candidates, and their costs.
        """
        for levels in self._mixed(factors, errors):
            for new in levels:
                if not new or time.monotonic() > self.deadline:
                    continue
                costs = self.measuring.add(new, self.data.costs, self.deadline)
                self.data = self.data.with_candidates([*self.data.candidates, *new], costs)
                if self._suffices(new):
                    break  # the next would leave more in float32 than it takes
        return self.data.problem(), self.data.candidates, self.data.costs

    def _mixed(
        self, factors: Mapping[int, float], errors: Mapping[tuple[str, ...], float]
    ) -> list[list[list[Candidate]]]:
        """Return candidates in two precisions that could keep a tolerance that covers broke.

        Args:
            factors: How far errors of nodes are carried, by graph index.
            errors: The errors of the covers that were tried.

        Returns:
            For each set of partitions, the fastest first, candidates at falling shares of its
            burden.
        """
        model, tolerance = self.model, self.tolerance
        candidates, costs = self.data.candidates, self.data.costs
        operators = len(model.graph.operators)
        alone = isolated_errors(candidates, costs)
        products = products_of(model)
        burden = burdens(products, candidates, alone, factors)
        work = work_of_operators(model.graph.record)
        effort: dict[int, float] = {number: work[number].operations for number in products}
        able = [
            name
            for name in {c.instance.toolchain for c in candidates}
            if about(name).mixes_precision
        ]
        cover, error = max(errors.items(), key=lambda item: item[1], default=((), 0.0))
        found: list[list[list[Candidate]]] = []
        sets = to_mix(candidates, costs, cover, operators, able)
        for parts in sorted(sets, key=lambda parts: sum(costs.cost(p.id).us for p in parts)):
            here = errors.get(tuple(p.id for p in parts), error)
            if len(parts[0].nodes) == operators and (parts[0].id,) not in errors:
                # A cover's error is known on all samples; a whole model's only on the run's inputs.
                here = WORST_OF_SAMPLES * alone.get(parts[0].id, 0.0)
            if here <= tolerance or not math.isfinite(here):
                continue  # admitted as it is, nothing known of it, or wrong altogether
            shares = [level * (tolerance / here) ** 2 for level in LEVELS]
            known = {c.id for levels in found for each in levels for c in each}
            levels = []
            for share in shares:
                new = mixed_candidates(
                    model, self.data.by_id, parts, [share], burden, effort, self.measuring.keys.key
                )
                levels.append([candidate for candidate in new if candidate.id not in known])
                known.update(candidate.id for candidate in new)
            found.append(levels)
        return found

    def _suffices(self, candidates: Sequence[Candidate]) -> bool:
        """Tell whether one of these is the whole model and keeps the tolerance on its inputs."""
        costs = [
            self.data.costs.cost(c.id)
            for c in candidates
            if len(c.nodes) == len(self.model.graph.operators)
        ]
        return any(
            cost.usable and (cost.max_rel_error or 0.0) * WORST_OF_SAMPLES <= self.tolerance
            for cost in costs
        )
