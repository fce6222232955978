"""The document of a run that still goes on: the best answer so far."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from collage_engine.candidates.menu import Menu, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.records.placement import Baseline, CandidateCounts, Run
from collage_engine.run.chosen_placement import baseline_placement, with_times
from collage_engine.run.facts import model_facts, settings_facts
from collage_engine.run.problem_data import ProblemData
from collage_engine.trials.whole_models import WholeModels


@dataclass(frozen=True, kw_only=True)
class ProvisionalInputs:
    """What is known of a run once a whole model has been timed."""

    run_id: str
    started_at: str
    open_model: OpenModel
    menu: Menu
    data: ProblemData
    whole_models: WholeModels


def provisional_document(inputs: ProvisionalInputs, control: RunControl) -> Run:
    """The run's document as far as it is known, with the fastest placement that was tried."""
    data, best = inputs.data, inputs.whole_models.best
    assert best is not None
    placement = with_times(baseline_placement(data, best), best)
    distinct = len({candidate.key for candidate in data.candidates})
    return Run(
        id=inputs.run_id,
        name=data.settings.name,
        model=model_facts(inputs.open_model.model.record),
        target=data.settings.target,
        threads=threads_of(data.settings),
        toolchains=list(inputs.menu.states),
        candidates=CandidateCounts(
            enumerated=len(data.candidates), distinct=distinct, skipped=distinct
        ),
        placement=msgspec.structs.replace(
            placement, spin=bool(best.built is not None and best.built.spin)
        ),
        baselines=[
            Baseline(
                name=one.contender.name,
                kind=one.contender.kind,
                measured_us=one.measured_us,
                spread_us=one.spread_us,
                partitions=max(1, len(one.contender.cover)),
                candidates=tuple(part.id for part in one.contender.cover),
                reduced=one.reduced,
                barred=one.contender.barred,
                from_trial=True,
            )
            for one in inputs.whole_models.timed
            if one.contender.kind != "collage"
        ],
        winner=best.contender.name,
        pins=[],
        max_abs_error=best.max_abs_error,
        max_rel_error=best.max_rel_error,
        seconds=control.total_seconds(),
        started_at=inputs.started_at,
        settings=settings_facts(data.settings),
        device=inputs.menu.device_text,
        warnings=list(control.warnings),
        confirmation="trial",
        first_answer_s=control.first_answer_s,
        provisional=True,
    )
