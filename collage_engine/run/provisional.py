"""Makes the document of a run that still goes on: the best answer so far."""

from __future__ import annotations

from typing import Protocol

import msgspec

from collage_engine.candidates.menu import Menu, threads_of
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.records.event import Provisional
from collage_engine.records.placement import Baseline, CandidateCounts, Run
from collage_engine.run.chosen_placement import baseline_placement, with_times
from collage_engine.run.facts import model_facts, settings_facts
from collage_engine.run.problem_data import ProblemData
from collage_engine.trials.baselines import COLLAGE
from collage_engine.trials.race import Race


class RunSoFar(Protocol):
    """What a provisional document takes from the inputs of the stage that found an answer."""

    @property
    def run_id(self) -> str:
        """Returns the run's name in its session."""

    @property
    def started_at(self) -> str:
        """Returns when the run began, as ISO 8601 in UTC."""

    @property
    def open_model(self) -> OpenModel:
        """Returns the model of the run."""

    @property
    def menu(self) -> Menu:
        """Returns the menu of the run: its toolchains and candidates."""

    @property
    def data(self) -> ProblemData:
        """Returns the candidates and their costs."""


def announce(inputs: RunSoFar, race: Race, control: RunControl) -> None:
    """Show the fastest placement so far to whoever follows the run."""
    control.emit(Provisional(run=provisional_document(inputs, race, control)))


def provisional_document(inputs: RunSoFar, race: Race, control: RunControl) -> Run:
    """Return the run's document as far as it is known.

    Args:
        inputs: The inputs of the stage that found the answer.
        race: The placements that take part; one of them leads.
        control: The run's warnings and times.

    Returns:
        The document, with the leader.
    """
    data, results = inputs.data, race.results()
    assert race.leader is not None
    best = race.result_of(race.leader)
    named = next(one.contender for one in results if one.contender.module == best.contender.module)
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
                names=one.names,
            )
            for one in results
            if one.contender.kind != "collage" and one.measured_us is not None
        ],
        winner=COLLAGE if named.kind == "collage" else named.name,
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
