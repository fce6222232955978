"""Makes the document of a run that still goes on: the best answer so far."""

from __future__ import annotations

import msgspec

from collage_engine.candidates.menu import Menu
from collage_engine.control.run_control import RunControl
from collage_engine.records.event import Provisional
from collage_engine.records.placement import Baseline, Run
from collage_engine.run.chosen_placement import baseline_placement, with_times
from collage_engine.run.facts import begun_document
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.task import RunTask
from collage_engine.trials.baselines import COLLAGE
from collage_engine.trials.race import Race


def announce(task: RunTask, menu: Menu, data: ProblemData, race: Race, control: RunControl) -> None:
    """Show the fastest placement so far to whoever follows the run."""
    control.emit(Provisional(run=provisional_document(task, menu, data, race, control)))


def provisional_document(
    task: RunTask, menu: Menu, data: ProblemData, race: Race, control: RunControl
) -> Run:
    """Return the run's document as far as it is known.

    Args:
        task: What the run was asked for.
        menu: The toolchains.
        data: The candidates and their costs.
        race: The placements that take part; one of them leads.
        control: The run's warnings and times.

    Returns:
        The document, with the leader.
    """
    results = race.results()
    assert race.leader is not None
    best = race.result_of(race.leader)
    named = next(one.contender for one in results if one.contender.module == best.contender.module)
    placement = with_times(baseline_placement(data, best), best)
    return msgspec.structs.replace(
        begun_document(task, menu, data.candidates, control),
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
        max_abs_error=best.max_abs_error,
        max_rel_error=best.max_rel_error,
        confirmation="trial",
        provisional=True,
    )
