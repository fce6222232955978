"""Builds placements and runs each in its own process: what the race rests on.

What is timed follows from the objective of the run: latency, throughput or the tail of latencies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from collage_engine.lowering.built import BuiltModule
from collage_engine.machine.worker import Worker
from collage_engine.records.settings import RunSettings
from collage_engine.support.errors import Cancelled
from collage_engine.support.time_limits import Flag, FlagWhen
from collage_engine.trials.contender import Contender
from collage_engine.trials.placement_process import (
    BUILD_JOB,
    LONG_ROUND_S,
    PlacementProcess,
    TrialBench,
    TrialSettings,
)

TAIL = 99
"""The percentile of a round's calls that stands for it where the tail is the objective."""
TOGETHER_S = 1.0
"""Seconds for which what is ready waits for what is begun at the same time, so that neither is
timed while the other one works; chosen: less than loading takes."""
Module: TypeAlias = tuple[Path, BuiltModule]
"""The folder of a built module, and what the builder says of it."""


class TrialRunner:
    """Builds placements and runs each in its own process; closing it ends these processes."""

    def __init__(
        self, bench: TrialBench, modules: Mapping[tuple[object, ...], Module] | None = None
    ) -> None:
        """Prepare; no process is started yet.

        Args:
            bench: What placements compute, on which samples, and how they are run.
            modules: What was built before, by the contender's key; it is not built again.
        """
        self.bench = bench
        self._modules = dict(modules or {})
        self._builders: list[Worker] = []
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
        self.end_builders()

    def end_builders(self) -> None:
        """End the workers that build, and what they hold of the model; later builds start anew."""
        for builder in self._builders:
            builder.close()
        self._builders.clear()

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

    def build(
        self,
        processes: Sequence[PlacementProcess],
        is_over: Callable[[], bool] = lambda: False,
    ) -> Iterator[list[PlacementProcess]]:
        """Build placements at once; the ``failure`` of each says why it could not be built.

        Args:
            processes: The placements, as many as are built at once; those that were built before
                are left as they are.
            is_over: Once it returns True, what is not built yet is left out.

        Yields:
            Those that are built, or cannot be, as soon as that is known of one; those that are left
            out have neither a ``folder`` nor a ``failure``.

        Raises:
            ModelError: The model's file has changed.
            Cancelled: The user stopped it.
        """
        waiting = [process for process in processes if process.folder is None]
        for number in range(len(self._builders), len(waiting)):
            name = f"collage-build-{number}"
            self._builders.append(self.bench.start_worker(BUILD_JOB, name=name))
        builders = dict(zip(waiting, self._builders, strict=False))
        yield [process for process in processes if process not in builders]
        yield from self._at_once(
            waiting, lambda process, flag: process.build(builders[process], flag), is_over
        )
        if self.bench.one_loaded:
            self.end_builders()  # what they hold is as large as a placement

    def load(
        self,
        processes: Sequence[PlacementProcess],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Load placements, each in a new process; ``failure`` says which could not be.

        Args:
            processes: The placements.
            is_over: Once it returns True, what is not loaded yet is left out.

        Raises:
            Cancelled: The user stopped it.
        """
        for _ in self._at_once(processes, PlacementProcess.reload, is_over):
            pass

    def _at_once(
        self,
        processes: Sequence[PlacementProcess],
        work: Callable[[PlacementProcess, Flag], None],
        is_over: Callable[[], bool],
    ) -> Iterator[list[PlacementProcess]]:
        """Do something with placements, some at a time; yield those with which it was done."""
        cancelled = self.bench.cancelled
        flag = FlagWhen(lambda: is_over() or cancelled.is_set())

        def do(process: PlacementProcess) -> PlacementProcess | None:
            try:
                if flag.is_set():
                    raise Cancelled("there is no time for it")
                work(process, flag)
            except Cancelled:
                if cancelled.is_set():
                    raise
                process.close()
                return None
            return process

        with ThreadPoolExecutor(max_workers=self.bench.settings.at_once) as pool:
            pending = {pool.submit(do, process) for process in processes}
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                more, pending = wait(pending, timeout=TOGETHER_S)
                yield [process for future in done | more if (process := future.result())]


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
        return replace(plain, round_s=LONG_ROUND_S, percentile=TAIL)
    return plain
