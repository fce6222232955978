"""Makes documents of runs: what each states, and the best answer of one that still goes on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collage_engine.candidates.menu import Menu, threads_of
from collage_engine.control.run_control import RunControl
from collage_engine.records.candidate import Candidate
from collage_engine.records.event import Provisional
from collage_engine.records.placement import Baseline, CandidateCounts, Run
from collage_engine.run.chosen_placement import baseline_placement, with_times
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


def begun_document(
    task: RunTask, menu: Menu, candidates: Sequence[Candidate], control: RunControl
) -> Run:
    """Return the document of a run that has no placement yet and has measured no candidate.

    Args:
        task: What the run was asked for. The user's inputs are large and are left out.
        menu: The toolchains and the device.
        candidates: All candidates.
        control: Knows the seconds of the stages and the warnings.
    """
    record, settings = task.open_model.model.record, task.settings
    distinct = len({candidate.key for candidate in candidates})
    return Run(
        id=task.run_id,
        name=settings.name,
        model={
            "path": record.path,
            "sha256": record.sha256,
            "nodes": record.nodes,
            "folded": list(record.folded),
        },
        target=settings.target,
        threads=threads_of(settings),
        toolchains=list(menu.states),
        candidates=CandidateCounts(enumerated=len(candidates), distinct=distinct, skipped=distinct),
        placement=None,
        baselines=[],
        winner="",
        pins=[],
        max_abs_error=None,
        max_rel_error=None,
        seconds=control.total_seconds(),
        started_at=task.started_at,
        settings=msgspec.to_builtins(msgspec.structs.replace(task.asked, inputs_npz=None)),
        threads_us=dict(task.threads_us),
        device=menu.device_text,
        warnings=list(control.warnings),
        first_answer_s=control.first_answer_s,
    )
