"""The stage that looks for better covers by measuring them whole."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.records.counted import counted
from collage_engine.records.errors import Cancelled
from collage_engine.records.placement import Placement
from collage_engine.run.problem_data import ProblemData, candidates_of
from collage_engine.run.trials_of_run import trial_runner
from collage_engine.search.measured_covers import MeasuredCover
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.trials.contender import Sample
from collage_engine.trials.objective import trial_settings
from collage_engine.trials.proposals import Proposal, Trial, run_proposals
from collage_engine.trials.refinement import refine_covers
from collage_engine.trials.runner import NOT_REACHED
from collage_engine.trials.whole_models import WholeModels


@dataclass(frozen=True, kw_only=True)
class RefineInputs:
    """The best covers so far, and what is needed to run covers."""

    open_model: OpenModel
    data: ProblemData
    measuring: Measuring
    placements: tuple[Placement, ...]
    sample: Sample
    further_samples: tuple[Sample, ...]
    tolerance: float
    whole_models: WholeModels
    budget: RunBudget


@dataclass(frozen=True, kw_only=True)
class RefineResult:
    """The covers, with what refinement found in front."""

    placements: tuple[Placement, ...]


class Refine:
    """Improves the best cover by local search on end-to-end measurements."""

    name = "refine"
    inputs = RefineInputs

    def run(self, inputs: RefineInputs, control: RunControl) -> RefineResult:
        """Refine for the time that the settings give it."""
        # From here on whole models are timed: no other child may hold memory or processors.
        inputs.measuring.close()
        data, placements = inputs.data, inputs.placements
        seconds = inputs.budget.given(data.settings.refine_budget_s)
        if data.settings.refine_budget_s <= 0 or data.settings.confirmation == "quick":
            return RefineResult(placements=placements)
        part = control.within(seconds)
        problem = data.problem()
        with (
            control.stage("refine") as report,
            trial_runner(
                self.name,
                inputs.open_model,
                [inputs.sample, *inputs.further_samples],
                inputs.tolerance,
                part,
                trial_settings(data.settings),
                modules=inputs.whole_models.modules,
            ) as runner,
        ):
            tried: list[MeasuredCover] = []

            def on_trial(trial: MeasuredCover) -> None:
                tried.append(trial)
                took = f"{trial.us / 1000:.3g} ms" if trial.us else trial.reason or ""
                report.progress(len(tried), len(tried), f"trial {len(tried)}: {took}")

            def run(proposal: Proposal) -> Trial:
                try:
                    return runner.run(proposal)
                except Cancelled:
                    control.check()
                    return Trial(failures=(NOT_REACHED,))

            proposer = refine_covers(
                problem,
                [candidates_of(placement) for placement in placements],
                data.by_id,
                seconds,
                on_trial=on_trial,
                stop=part.cancelled.is_set,
            )
            found = run_proposals(proposer, run)
            control.check()
            if control.keep.is_set():
                control.cut("refine")
            report.detail = f"{counted(len(found.trials), 'placement')} measured end to end"
            if found.us is not None and found.start_us:
                gain = (1 - found.us / found.start_us) * 100
                report.detail += f", best {gain:.1f} % faster than the start"
        best = {str(name) for name in found.cover}
        known = [p for p in placements if set(candidates_of(p)) == best]
        first = known[0] if known else data.placement(found.cover, problem)
        return RefineResult(placements=(first, *(p for p in placements if p is not first)))
