"""What every document of a run states, whatever became of the run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collage_engine.candidates.menu import Menu, threads_of
from collage_engine.control.run_control import RunControl
from collage_engine.records.candidate import Candidate
from collage_engine.records.placement import CandidateCounts, Run
from collage_engine.run.task import RunTask


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
