"""Builds placements and runs each in its own process: what the race rests on.

What is timed follows from the objective of the run: latency, throughput or the tail of latencies.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock
from typing import TypeAlias

from collage_engine.build.built import BuiltModule
from collage_engine.machine.worker import Worker
from collage_engine.records.errors import Cancelled, CollageError
from collage_engine.records.faults import FaultTracker
from collage_engine.records.flag import Flag, FlagWhen
from collage_engine.records.settings import RunSettings
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.placement_process import (
    ALONE,
    BUILD_JOB,
    Deployment,
    PlacementProcess,
    RoundSettings,
    StartWorker,
    TrialFiles,
    TrialModel,
)

Module: TypeAlias = tuple[Path, BuiltModule]
"""The folder of a built module, and what the builder says of it."""
ALONE_WARM_S, ALONE_ROUND_S = 0.5, 0.5
"""Seconds of calls before a round and in it, of a placement that was loaded just for it; chosen:
small beside the seconds that loading gigabytes takes."""


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """How placements are built and run."""

    round: RoundSettings = field(default_factory=RoundSettings)
    builders: int = 2
    """Placements built at a time; chosen: a build takes one processor and some 1 GB."""
    deployed: Deployment = ALONE
    """How placements are used: modules are built for it, and rounds are of as many instances."""
    most_memory_bytes: int = 0
    """Resident memory of a running placement, from which on it cannot win; 0: any is allowed."""
    loaders: int = 2
    """Placements loaded and checked at a time; chosen."""


def one_at_a_time(settings: TrialSettings) -> TrialSettings:
    """Return the settings for placements of which only one is loaded at a time.

    Each round follows loading, so that it is longer and begins with a longer warm-up.
    """
    longer = replace(settings.round, warm_s=ALONE_WARM_S, seconds=ALONE_ROUND_S)
    return replace(settings, builders=1, loaders=1, round=longer)


class TrialRunner:
    """Builds placements and runs each in its own process; closing it ends these processes."""

    def __init__(
        self,
        model: TrialModel,
        samples: Sequence[Sample],
        tolerance: float,
        folder: Path,
        *,
        cancelled: Flag | None = None,
        settings: TrialSettings | None = None,
        start_worker: StartWorker = Worker,
        modules: Mapping[tuple[object, ...], Module] | None = None,
        faults: FaultTracker | None = None,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Prepare; no process is started yet.

        Args:
            model: what placements compute.
            samples: on all of them a placement's outputs must be right; the first one is timed.
            tolerance: on ``max|y-r| / max|r|`` of the outputs.
            folder: scratch space that outlives whatever is wanted of the modules.
            cancelled: ends every call when it is set.
            settings: how placements are built and run.
            start_worker: makes a process; tests give another one.
            modules: what was built before, by the contender's key; it is not built again.
            faults: which toolchains crashed or hung in this run.
            left_s: returns the seconds that the run has left: who takes too much of them is out.
        """
        self.files = TrialFiles(model, samples, folder)
        self.settings = settings or TrialSettings()
        if self.files.one_loaded is not None:
            self.settings = one_at_a_time(self.settings)
        self._tolerance = tolerance
        self._cancelled = cancelled or Event()
        self._start_worker = start_worker
        self._faults = faults or FaultTracker()
        self._left_s = left_s
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

    def _builder(self, place: int = 0) -> Worker:
        """Return a worker that builds; each keeps the model that it has imported."""
        while len(self._builders) <= place:
            number = len(self._builders)
            self._builders.append(self._start_worker(BUILD_JOB, name=f"collage-build-{number}"))
        return self._builders[place]

    def process(self, contender: Contender, tolerance: float | None = None) -> PlacementProcess:
        """Return a placement that is yet to be built and loaded; this runner ends its process.

        Args:
            contender: The placement; what was built before under its key is taken.
            tolerance: The bound on ``max|y-r| / max|r|`` of its outputs; None: the runner's.
        """
        process = PlacementProcess(
            contender,
            self.files,
            self.files.folder / f"placement{next(self._numbers)}",
            self._tolerance if tolerance is None else tolerance,
            self._cancelled,
            self._start_worker,
            self._faults,
            self.settings.deployed,
            self.settings.most_memory_bytes,
            self._left_s,
        )
        module = self._modules.get(contender.key)
        if module is not None and self.settings.deployed.fits(module[1]):
            process.use(*module)
        self._processes.append(process)
        return process

    def build(
        self,
        processes: Sequence[PlacementProcess],
        on_build: Callable[[PlacementProcess], None] = lambda process: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> list[PlacementProcess]:
        """Build placements, some at a time; the ``failure`` of each says why it could not be built.

        Args:
            processes: The placements; those that were built before are left as they are.
            on_build: Is called before each build.
            is_over: Once it returns True, what is not built yet is left out.

        Returns:
            Those that were left out.

        Raises:
            ModelError: The model's file has changed.
            Cancelled: The user stopped it.
        """
        queue = [one for one in processes if one.folder is None]
        left_out: list[PlacementProcess] = []
        lock = Lock()
        flag = FlagWhen(lambda: is_over() or self._cancelled.is_set())

        def work(number: int) -> None:
            """Build what is left in the queue, on the builder of this number."""
            while True:
                with lock:
                    if not queue:
                        return
                    process = queue.pop(0)
                    on_build(process)
                try:
                    process.build(self._builder(number), flag)
                except Cancelled:
                    if self._cancelled.is_set():
                        raise
                    left_out.append(process)

        count = min(self.settings.builders, len(queue))
        if not count:
            return left_out
        self._builder(count - 1)
        with ThreadPoolExecutor(max_workers=count) as pool:
            for finished in [pool.submit(work, number) for number in range(count)]:
                finished.result()
        if self.files.one_loaded is not None:
            self.end_builders()  # what they hold is as large as a placement
        return left_out

    def load(
        self,
        processes: Sequence[PlacementProcess],
        on_load: Callable[[PlacementProcess], None] = lambda process: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> list[PlacementProcess]:
        """Load placements, each in a new process; ``failure`` says which could not be.

        Args:
            processes: The placements.
            on_load: Is called before each is loaded.
            is_over: Once it returns True, what is not loaded yet is left out.

        Returns:
            Those that were left out.

        Raises:
            Cancelled: The user stopped it.
        """
        left_out: list[PlacementProcess] = []
        flag = FlagWhen(lambda: is_over() or self._cancelled.is_set())

        def work(process: PlacementProcess) -> None:
            try:
                if is_over():
                    left_out.append(process)
                    return
                on_load(process)
                process.reload(flag)
            except Cancelled:
                if self._cancelled.is_set():
                    raise
                process.close()
                left_out.append(process)

        with ThreadPoolExecutor(max_workers=self.settings.loaders) as pool:
            for loaded in [pool.submit(work, process) for process in processes]:
                loaded.result()
        return left_out

    def timed_round(self, process: PlacementProcess) -> list[float] | None:
        """Let the machine rest, then run one round of a placement.

        Returns:
            The microseconds of its calls; None where it failed, and then ``failure`` says how.

        Raises:
            Cancelled: The user stopped it.
        """
        time.sleep(self.settings.round.rest_s)
        try:
            return process.timed_round(self.settings.round)
        except Cancelled:
            raise
        except CollageError as error:
            process.fail(error, "it was timed")
            return None


THROUGHPUT_ROUND = RoundSettings(seconds=0.25, warm_s=0.0)
"""A round of several instances at once; chosen: long beside the moment in which they start."""
TAIL_ROUND = RoundSettings(seconds=0.4, least_calls=20, most_calls=4000, percentile=99)
"""A round whose 99th percentile is compared; chosen: a hundred calls of up to 4 ms."""


def trial_settings(settings: RunSettings) -> TrialSettings:
    """Return how placements are built and timed on the way to the confirmation.

    One instance is timed, whatever the objective. Where several are to run at once its threads do
    not spin, as they would take the time of the others.
    """
    return TrialSettings(
        deployed=Deployment(spin=_spin(settings)), most_memory_bytes=settings.max_memory_bytes
    )


def _spin(settings: RunSettings) -> bool | None:
    """Return whether idle threads spin; None: as ``build.may_spin`` says."""
    return False if settings.objective == "throughput" and settings.streams > 1 else None


def confirming_settings(settings: RunSettings) -> TrialSettings:
    """Return how contenders are timed in the confirmation: as they are going to be deployed."""
    most = settings.max_memory_bytes
    if settings.objective == "throughput":
        deployed = Deployment(streams=max(1, settings.streams), spin=_spin(settings))
        return TrialSettings(round=THROUGHPUT_ROUND, deployed=deployed, most_memory_bytes=most)
    if settings.objective == "p99":
        return TrialSettings(round=TAIL_ROUND, most_memory_bytes=most)
    return TrialSettings(most_memory_bytes=most)
