"""Makes documents of runs: what each states, and the best answer of one that still goes on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collage_engine.candidates.catalog import CandidateCatalog, threads_of
from collage_engine.machine.run_control import RunControl
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import Candidate
from collage_engine.records.placement import Baseline, CandidateCounts, Run
from collage_engine.run.chosen_placement import timed_placement
from collage_engine.run.task import RunTask
from collage_engine.trials.contender import COLLAGE, ContenderResult, finite
from collage_engine.trials.race import Race


def provisional_document(
    task: RunTask, catalog: CandidateCatalog, inputs: SearchInputs, race: Race, control: RunControl
) -> Run:
    """Return the run's document as far as it is known.

    Args:
        task: What the run was asked for.
        catalog: The toolchains.
        inputs: The candidates and their costs.
        race: The placements that take part; one of them leads.
        control: The run's warnings and times.

    Returns:
        The document, with the leader.
    """
    results = race.standings.results()
    assert race.leader is not None
    best = race.standings.result_of(race.leader)
    named = next(
        result.contender for result in results if result.contender.key == best.contender.key
    )
    return msgspec.structs.replace(
        begun_document(task, catalog, inputs.candidates, control),
        placement=timed_placement(inputs, best),
        baselines=[
            baseline_of(inputs, result)
            for result in results
            if result.contender.kind != COLLAGE and result.measured_us is not None
        ],
        winner=COLLAGE if named.kind == COLLAGE else named.name,
        max_abs_error=best.max_abs_error,
        max_rel_error=best.max_rel_error,
        confirmation="trial",
        provisional=True,
    )


def baseline_of(inputs: SearchInputs, outcome: ContenderResult) -> Baseline:
    """Return the record of a baseline with its measured and its estimated time."""
    contender = outcome.contender
    assert contender.kind != COLLAGE
    return Baseline(
        name=contender.name,
        kind=contender.kind,
        measured_us=outcome.measured_us,
        spread_us=outcome.spread_us,
        estimated_us=inputs.placement(contender.cover).estimated_us if contender.cover else None,
        reason=outcome.reason,
        names=outcome.names,
        partitions=max(1, len(contender.cover)),
        reduced=contender.reduced,
        max_rel_error=finite(outcome.max_rel_error),
        barred=contender.barred,
        order=tuple(dict.fromkeys(part.instance.toolchain for part in contender.cover)),
        candidates=tuple(part.id for part in contender.cover),
        layers=outcome.layers,
    )


def begun_document(
    task: RunTask, catalog: CandidateCatalog, candidates: Sequence[Candidate], control: RunControl
) -> Run:
    """Return the document of a run that has no placement yet and has measured no candidate.

    Args:
        task: What the run was asked for. The user's inputs are large and are left out.
        catalog: The toolchains and the device.
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
        toolchains=list(catalog.states),
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
        device=catalog.device_text,
        warnings=list(control.warnings),
        first_answer_s=control.first_answer_s,
    )
