"""What the tuning child does: list what a candidate has to tune, and tune one workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from collage_engine.records.format import Formats
from collage_engine.records.toolchain import ToolchainInstance, TuneRecord, TuneTask

JOB = "collage_engine.timing.tuning_job:TuningJob"


@dataclass(frozen=True)
class ListTasks:
    """What of a candidate can be tuned? Answered by a list of ``TuneTask``."""

    model_path: str
    shapes: dict[str, tuple[int, ...]]
    nodes: tuple[int, ...]
    """Operator numbers."""
    instance: ToolchainInstance
    takes: Formats = field(default_factory=dict)
    gives: Formats = field(default_factory=dict)
    sha256: str | None = None
    """Of the model file as it must be."""


@dataclass(frozen=True)
class Tune:
    """Search for a better kernel. Answered by a ``TuneRecord``; earlier ones go ahead of it."""

    task: TuneTask
    instance: ToolchainInstance
    known: TuneRecord | None
    seconds: float


class TuningJob:
    """The worker's target; keeps the last model open."""

    def __init__(self) -> None:
        self._opened: tuple[Any, Any] | None = None

    def __call__(self, request: Any, send: Callable[[Any], None]) -> Any:
        """Answer a request; ``send`` takes the messages that go ahead of the answer."""
        from collage_engine.toolchains.capabilities import tuner_of
        from collage_engine.toolchains.registry import get

        tuner: Any = tuner_of(get(request.instance.toolchain))
        if isinstance(request, ListTasks):
            return tuner.tasks(self._function(request))
        assert isinstance(request, Tune)
        return tuner.tune(request.task, request.instance, request.known, request.seconds, send)

    def _function(self, request: ListTasks) -> Any:
        from collage_engine.lowering.extract import function_of
        from collage_engine.lowering.reference import run_onnx
        from collage_engine.model.importer import import_model

        key = (request.model_path, request.sha256, tuple(sorted(request.shapes.items())))
        if self._opened is None or self._opened[0] != key:
            self._opened = (
                key,
                import_model(request.model_path, request.shapes or None, request.sha256, run_onnx),
            )
        return function_of(
            self._opened[1],
            request.instance,
            request.nodes,
            "tuned",
            False,
            request.takes,
            request.gives,
        )
