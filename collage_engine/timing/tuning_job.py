"""What the tuning child does: list what a candidate has to tune, and tune one workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import ModelRecord
from collage_engine.records.toolchain import ToolchainInstance, TuneRecord, TuneTask

JOB = "collage_engine.timing.tuning_job:work"


@dataclass(frozen=True)
class ListTasks:
    """What of a candidate can be tuned? Answered by a list of ``TuneTask``."""

    model: ModelRecord
    """Which model file, as it must be."""
    candidate: Candidate


@dataclass(frozen=True)
class Tune:
    """Search for a better kernel. Answered by a ``TuneRecord``; earlier ones go ahead of it."""

    task: TuneTask
    instance: ToolchainInstance
    known: TuneRecord | None
    seconds: float


def work(request: ListTasks | Tune, send: Callable[[TuneRecord], None]) -> Any:
    """Answer a request; ``send`` takes the messages that go ahead of the answer."""
    from collage_engine.lowering.extract import function_of_candidate
    from collage_engine.lowering.reference import opened_model
    from collage_engine.toolchains.capabilities import tuner_of
    from collage_engine.toolchains.registry import get

    if isinstance(request, Tune):
        tuner = tuner_of(get(request.instance.toolchain))
        return tuner.tune(request.task, request.instance, request.known, request.seconds, send)
    record = request.model
    model = opened_model(record.path, tuple(record.shapes.items()), record.sha256)
    chosen = request.candidate
    function = function_of_candidate(model, chosen, "tuned")
    return tuner_of(get(chosen.instance.toolchain)).tuning_tasks(function)
