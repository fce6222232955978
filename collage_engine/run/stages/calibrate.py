"""The step that corrects costs by what partitions take within a model, and searches again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from collage_engine.candidates.menu import Menu
from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.records.cost_table import CostTable
from collage_engine.records.errors import InfeasibleError
from collage_engine.records.time_limits import SHORTEST_RUN_S
from collage_engine.run.contenders import with_eligibility
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.stages.search import SearchResult, find_covers
from collage_engine.run.task import RunTask
from collage_engine.run.trials_of_run import profiled_covers
from collage_engine.search.problem import Problem
from collage_engine.trials.baselines import COLLAGE
from collage_engine.trials.calibration import (
    CalibrationInput,
    CalibrationSettings,
    CandidateIds,
    Found,
    calibrate,
    is_worthwhile,
    learning_tolerance,
)
from collage_engine.trials.contender import Contender, ProfiledCover, Trial
from collage_engine.trials.race import Race


def calibrate_costs(
    task: RunTask,
    menu: Menu,
    data: ProblemData,
    searched: SearchResult,
    tolerance: float,
    race: Race,
    budget: RunBudget,
    control: RunControl,
) -> tuple[ProblemData, SearchResult]:
    """Have covers enter the race, and search again on what their partitions take there.

    Where time is short, the covers that were profiled before have to do. Where there are none, and
    where no cover could be run, everything stays as it is.

    Returns:
        Costs within the model, and the best covers on these, best first; last the cover that ran
        fastest, where it is none of the others.
    """
    found: Found = (searched.answer, list(searched.placements))
    # On a device the VM's clock sees calls being issued, and one graph for all of them; there
    # candidates are timed as they run in the model: in a graph, their weights from memory.
    on_processor = menu.target.kind == "cpu"
    wanted = data.settings.in_place and on_processor and not task.is_quick
    seconds = budget.to_improve_s
    if wanted and is_worthwhile(found, data.candidates, data.costs):
        if seconds < SHORTEST_RUN_S:
            control.cut("calibrate")
            seconds = 0.0
        profiled = profiled_covers(race, data)
        if seconds or profiled:
            return _calibrated(task, menu, data, found, tolerance, race, control, seconds, profiled)
    return data, searched


def _calibrated(
    task: RunTask,
    menu: Menu,
    data: ProblemData,
    found: Found,
    tolerance: float,
    race: Race,
    control: RunControl,
    seconds: float,
    profiled: Sequence[ProfiledCover],
) -> tuple[ProblemData, SearchResult]:
    settings = CalibrationSettings()
    seconds = min(seconds, settings.seconds(data.settings.budget_s))

    def problem(costs: CostTable) -> Problem:
        return data.with_costs(costs).problem()

    def search(costs: CostTable) -> Found | None:
        try:
            result = find_covers(data.with_costs(costs), menu.without_candidates)
        except InfeasibleError as error:
            control.log(f"no search on the costs within the model: {error}")
            return None
        return result.answer, list(result.placements)

    ends_at = time.monotonic() + seconds
    with control.stage("calibrate") as report:

        def run(cover: CandidateIds) -> Trial:
            candidates = tuple(data.by_id[name] for name in cover)
            loose = learning_tolerance(candidates, tolerance)
            contender = Contender(name=COLLAGE, kind="collage", cover=candidates, eligible=False)
            if loose is None:
                contender = with_eligibility(data, contender)
            return race.try_cover(contender, ends_at=ends_at, tolerance=loose)

        given = CalibrationInput(
            graph=task.open_model.model.graph,
            candidates=data.candidates,
            costs=data.costs,
            found=found,
            search=search,
            problem=problem,
            run=run,
            seconds=seconds,
            profiled=profiled,
            stop=lambda: not race.has_time(ends_at),
            on_cover=report.progress,
            log=control.log,
        )
        calibrated = calibrate(given, settings)
        report.detail = calibrated.detail
    placements = tuple(calibrated.placements)
    return data.with_costs(calibrated.costs), SearchResult(calibrated.answer, placements)
