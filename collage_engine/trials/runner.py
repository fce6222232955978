"""Builds placements and runs each in its own process: what the race rests on.

What is timed follows from the objective of the run: latency, throughput or the tail of latencies.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from collage_engine.lowering.built import BuiltModule
from collage_engine.machine.worker import Worker
from collage_engine.records.graph import ModelRecord
from collage_engine.records.settings import RunSettings
from collage_engine.support.errors import Cancelled, CollageError
from collage_engine.support.time_limits import WORK_S, Flag, FlagWhen, with_weights
from collage_engine.trials.contender import Contender
from collage_engine.trials.placement_process import (
    BUILD_JOB,
    PlacementProcess,
    TrialBench,
    TrialSettings,
    build_request,
)
from collage_engine.trials.trial_job import LONG_ROUND_S

Module: TypeAlias = tuple[Path, BuiltModule]
"""The folder of a built module, and what the builder says of it."""


class TrialRunner:
    """Builds placements and runs each in its own process; closing it ends these processes."""

    def __init__(
        self,
        bench: TrialBench,
        modules: Mapping[tuple[object, ...], Module] | None = None,
        builder: Worker | None = None,
    ) -> None:
        """Prepare; no process is started yet.

        Args:
            bench: What placements compute, on which samples, and how they are run.
            modules: What was built before, by the contender's key; it is not built again.
            builder: The worker that builds; None: one is started when it is needed.
        """
        self.bench = bench
        self._modules = dict(modules or {})
        self._builder = builder
        self._processes: list[PlacementProcess] = []
        self._numbers = itertools.count(1)

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process; modules stay."""
        for process in self._processes:
            process.close()
        self.end_builder()

    def end_builder(self) -> None:
        """End the worker that builds, and what it holds of the model; a later build starts anew."""
        if self._builder is not None:
            self._builder.close()
        self._builder = None

    def process(self, contender: Contender) -> PlacementProcess:
        """Return a placement that is yet to be built and loaded; this runner ends its process.

        What was built before under the contender's key is taken, if it spins as the settings say.
        """
        folder = self.bench.folder / f"placement{next(self._numbers)}"
        process = PlacementProcess(contender, self.bench, folder)
        module = self._modules.get(contender.key)
        if module is not None and self.bench.settings.spin in (None, module[1].spin):
            process.use(*module)
        self._processes.append(process)
        return process

    def build(self, process: PlacementProcess, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Build a placement, unless it was built before; its ``failure`` says why it could not be.

        Args:
            process: The placement.
            is_over: Once it returns True, the build is cut off.

        Returns:
            Whether there was time for it.

        Raises:
            ModelError: The model's file has changed.
            Cancelled: The user stopped it.
        """
        if process.folder is not None:
            return True
        builder = self._builder or self.bench.start_worker(BUILD_JOB, name="collage-build")
        self._builder = builder
        in_time = self._until(is_over, process, lambda flag: process.build(builder, flag))
        if self.bench.exclusive:
            self.end_builder()  # what it holds is as large as a placement
        return in_time

    def load(self, process: PlacementProcess, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Load a placement in a new process; its ``failure`` says why it could not be.

        Args:
            process: The placement.
            is_over: Once it returns True, the loading is cut off.

        Returns:
            Whether there was time for it.

        Raises:
            Cancelled: The user stopped it.
        """
        return self._until(is_over, process, process.reload)

    def _until(
        self, is_over: Callable[[], bool], process: PlacementProcess, work: Callable[[Flag], None]
    ) -> bool:
        """Do something with a placement until the time is over; return whether there was time."""
        cancelled = self.bench.cancelled
        flag = FlagWhen(lambda: is_over() or cancelled.is_set())
        try:
            if flag.is_set():
                raise Cancelled("there is no time for it")
            work(flag)
        except Cancelled:
            if cancelled.is_set():
                raise
            process.close()
            return False
        return True


@contextlib.contextmanager
def early_builder(model: ModelRecord, cancelled: Flag) -> Iterator[Worker]:
    """Start the worker that builds: it opens the model while its candidates are enumerated."""
    builder, ended = Worker(BUILD_JOB, name="collage-build"), threading.Event()
    opening = build_request(model, (), spin=None, folder="")
    is_over = FlagWhen(lambda: ended.is_set() or cancelled.is_set())

    def open_model() -> None:
        with contextlib.suppress(CollageError):  # the first build fails again, and says so
            builder.call(opening, with_weights(WORK_S, model.weights_bytes), is_over)

    threading.Thread(target=open_model, daemon=True).start()
    try:
        yield builder
    finally:
        ended.set()
        builder.close()


def trial_settings(settings: RunSettings) -> TrialSettings:
    """Return how placements are built and timed on the way to the confirmation.

    One instance is timed, whatever the objective. Where several are to run at once its threads do
    not spin, as they would take the time of the others.
    """
    several = settings.objective == "throughput" and settings.streams > 1
    return TrialSettings(
        spin=False if several else None, most_memory_bytes=settings.max_memory_bytes
    )


def confirming_settings(settings: RunSettings) -> TrialSettings:
    """Return how contenders are timed in the confirmation: as they are going to be deployed."""
    plain = trial_settings(settings)
    if settings.objective == "throughput":
        return replace(plain, round_s=LONG_ROUND_S, warm_s=0.0, streams=max(1, settings.streams))
    if settings.objective == "p99":
        return replace(plain, round_s=LONG_ROUND_S, tail=True)
    return plain
