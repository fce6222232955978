"""Builds placements and runs each in a process of its own: what the race rests on.

A process of its own with its own environment, so that no thread pool of one placement spins in
another's time. The process sleeps on its pipe until it is asked for something.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from collage_engine.candidates.catalog import may_lose_nan
from collage_engine.lowering.accuracy import wrong_by
from collage_engine.lowering.build import BuildCover
from collage_engine.lowering.built import MODULE_FILE, BuiltModule, working_calls
from collage_engine.machine.faults import FaultTracker
from collage_engine.machine.worker import (
    Worker,
    WorkerError,
    WorkerFault,
    WorkerTimeout,
    call_again,
)
from collage_engine.records.graph import ModelRecord
from collage_engine.records.placement import MemorySeen
from collage_engine.support.errors import Cancelled, CollageError, ModelError, ToolchainError
from collage_engine.support.files import write_npz
from collage_engine.support.text import counted
from collage_engine.support.time_limits import (
    ANSWER_S,
    LEAST_S,
    WORK_S,
    Flag,
    FlagWhen,
    with_weights,
    within_budget,
)
from collage_engine.timing.child import WRONG_NUMBERS
from collage_engine.trials.contender import Contender, ModuleKey, Sample
from collage_engine.trials.objective import TAIL, TrialSettings
from collage_engine.trials.trial_job import (
    LAYERS_FOLDER,
    LONG_ROUND_S,
    ErrorsByOutput,
    OpenPlacement,
    PlacementProfile,
    TrialJob,
)

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

log = logging.getLogger(__name__)

NOT_ACCURATE = "not accurate enough"
"""How the failure of a placement begins that computes in reduced precision and is too far off; that
of another one begins with ``WRONG_NUMBERS``."""
BUILD_JOB = "collage_engine.lowering.build:BuildJob"
TRIAL_JOB = "collage_engine.trials.trial_job:TrialJob"
LOAD_TIMEOUT_S = 2 * ANSWER_S
"""Seconds after which loading a placement and running it on every sample counts as hanging, besides
those for its weights (``with_weights``): loading is one answer, the samples are another."""
LOAD_LEAST_S = 2 * LEAST_S
"""Seconds for that however little the run has left."""
BUILD_LEAST_S = 2 * LOAD_LEAST_S
"""The same for building a placement, which a compiler's libraries are loaded for, too."""

TRIAL_SPIN = {"TVM_THREAD_POOL_SPIN_COUNT": "20000"}
"""Turns for which idle threads of TVM's pool spin in a trial, where they may: some 12 ms, which is
long beside what is between two parallel regions. By itself TVM spins for 300,000, and each round
waited 0.16 to 0.2 s for that to end (two threads, Zen 4); calls take the same either way."""

ONE_LOADED_FROM_BYTES = 2e9
"""Bytes of weights from which on one placement is loaded at a time, and loaded again for each of
its rounds; chosen: each holds its weights once more, and two of this size take 4 GB."""

Module: TypeAlias = tuple[Path, BuiltModule]
"""The folder of a built module, and what the builder says of it."""
StartWorker = Callable[..., Worker]
"""Makes a worker of a target, its environment and a name; ``machine.worker.Worker`` does."""


@contextlib.contextmanager
def early_builder(model: ModelRecord, cancelled: Flag) -> Iterator[Worker]:
    """Start the worker that builds: it opens the model while its candidates are enumerated."""
    builder, ended = Worker(BUILD_JOB, name="collage-build"), threading.Event()
    opening = BuildCover(model=model)
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


@dataclass(eq=False)
class TrialBench:
    """What the trials of one model share; it builds placements and runs each in its own process.

    No process is started before it is needed; closing the bench ends them all.

    Attributes:
        model: What placements compute.
        samples: The inputs and true outputs on which they are checked; they are timed on the first.
        tolerance: On ``max|y-r| / max|r|`` of the outputs.
        folder: Scratch space that outlives whatever is wanted of the modules.
        settings: How placements are built and run.
        cancelled: Ends every call when it is set.
        start_worker: Makes a process; tests give another one.
        faults: Which toolchains crashed or hung in this run.
        left_s: Returns the seconds that the run has left: who takes too much of them is out.
        modules: What was built before, by the contender's key; it is not built again.
        builder: The worker that builds; None: one is started when it is needed.
        sample_folders: A folder for each sample.
        has_nan: Whether a true output holds NaN, which some toolchains may lose.
        exclusive: Whether several placements would take too much memory together.
    """

    model: ImportedModel
    samples: Sequence[Sample]
    tolerance: float
    folder: Path
    settings: TrialSettings = field(default_factory=TrialSettings)
    cancelled: Flag = field(default_factory=threading.Event)
    start_worker: StartWorker = Worker
    faults: FaultTracker = field(default_factory=FaultTracker)
    left_s: Callable[[], float] = lambda: math.inf
    modules: Mapping[ModuleKey, Module] = field(default_factory=dict)
    builder: Worker | None = None

    def __post_init__(self) -> None:
        """Write the samples."""
        self.sample_folders = [self.folder / f"sample{k}" for k, _ in enumerate(self.samples, 1)]
        for place, sample in zip(self.sample_folders, self.samples, strict=True):
            place.mkdir(parents=True, exist_ok=True)
            write_npz(place / "inputs.npz", sample.inputs)
            write_npz(place / "outputs.npz", sample.truth)
        self.has_nan = any(
            "float" in array.dtype.name and bool(np.isnan(array).any())
            for sample in self.samples
            for array in sample.truth.values()
        )
        self.exclusive = self.model.record.weights_bytes >= ONE_LOADED_FROM_BYTES
        if self.exclusive:
            # Each round follows loading, so that it is longer and begins with a longer warm-up.
            self.settings = replace(self.settings, warm_s=LONG_ROUND_S, round_s=LONG_ROUND_S)
        self._processes: list[PlacementProcess] = []
        self._holder: PlacementProcess | None = None

    def __enter__(self) -> TrialBench:
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
        if self.builder is not None:
            self.builder.close()

    def process(self, contender: Contender) -> PlacementProcess:
        """Return a placement that is yet to be built and loaded.

        What was built before under the contender's key is taken, if it spins as the settings say.
        """
        folder = self.folder / f"placement{len(self._processes) + 1}"
        process = PlacementProcess(contender, self, folder)
        module = self.modules.get(contender.key)
        if module is not None and self.settings.spin in (None, module[1].spin):
            process.folder, process.built = module
        self._processes.append(process)
        return process

    def evict_others(self, process: PlacementProcess | None) -> None:
        """Where one placement may be loaded, unload it for another one or for nobody."""
        before, self._holder = self._holder, process
        if self.exclusive and before is not None and before is not process:
            before.rest()


@dataclass(eq=False)
class PlacementProcess:
    """A placement on its way through a trial: built, loaded, timed, closed.

    Attributes:
        contender: The placement.
        bench: The samples and the model, and how it is run.
        module_folder: A folder of its own, not there yet.
        failure: Why it cannot be built, loaded or run, or which numbers are wrong; None: it can.
        folder: Where its module lies; None: it has none.
        built: What the builder says of the module.
        max_abs_error: The largest absolute error of its outputs on the samples; None: it is not
            known, or nothing was checked.
        max_rel_error: The largest relative error, ``max|y-r| / max|r|``.
        memory: How much memory its process was seen to take, once asked.
        over_memory: Why its memory bars it from winning; None: it does not.
        load_s: Seconds that loading and checking it took last.
    """

    contender: Contender
    bench: TrialBench
    module_folder: Path
    failure: str | None = None
    folder: Path | None = None
    built: BuiltModule | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    memory: MemorySeen | None = None
    over_memory: str | None = None
    load_s: float = 0.0
    _worker: Worker | None = None
    _rests: bool = False
    """Whether it was unloaded for others and is loaded again when it is asked for something."""

    @property
    def loaded(self) -> bool:
        """Tell whether it is in a process now, or will be when it is asked for something."""
        return self._worker is not None or self._rests

    @property
    def can_win(self) -> bool:
        """Tell whether it can be exported: it runs, its numbers are right, and nothing bars it."""
        return self.failure is None and self.folder is not None and self.contender.eligible

    def build(self, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Build the placement, unless it was built before; ``failure`` says where it cannot be.

        Args:
            is_over: Once it returns True, the build is cut off.

        Returns:
            Whether there was time for it.

        Raises:
            ModelError: The model's file has changed.
            Cancelled: The user stopped it.
        """
        if self.folder is not None:
            return True
        bench, model = self.bench, self.bench.model.record
        bench.evict_others(None)
        bench.builder = bench.builder or bench.start_worker(BUILD_JOB, name="collage-build")
        builder, began = bench.builder, time.monotonic()
        request = BuildCover(
            model=model,
            cover=self.contender.cover,
            spin=bench.settings.spin,
            folder=str(self.module_folder),
        )
        most_s, least_s = (with_weights(s, model.weights_bytes) for s in (WORK_S, BUILD_LEAST_S))
        # What has no answer yet may take all the time: half of it would be no use for another one.
        limit_s = min(most_s, max(bench.left_s(), least_s))

        def build(flag: Flag) -> None:
            # One that was killed, or cut off before, may have begun to write.
            clear = partial(shutil.rmtree, self.module_folder, ignore_errors=True)
            clear()
            self.built = call_again(lambda: builder.call(request, limit_s, flag), prepare=clear)
            self.folder = self.module_folder
            self._log(f"built in {time.monotonic() - began:.2f} s")

        in_time = self._until(is_over, build, "it was built")
        if bench.exclusive:
            bench.end_builder()  # what it holds is as large as a placement
        return in_time

    def load(
        self,
        is_over: Callable[[], bool] = lambda: False,
        environment: Mapping[str, str] | None = None,
    ) -> bool:
        """Load the placement in a new process and check its numbers on every sample.

        Where it cannot be loaded, or its numbers break the tolerance, ``failure`` says so and the
        process is ended. Where the memory of a process happens to lie can make several percent of
        the time of the very same module, so that it may be loaded anew.

        Args:
            is_over: Once it returns True, the loading is cut off.
            environment: Variables that the process gets besides its own.

        Returns:
            Whether there was time for it.

        Raises:
            Cancelled: The user stopped it.
        """
        self.close()
        began = time.monotonic()

        def load(flag: Flag) -> None:
            self._start(environment)
            errors = self._open(flag)
            self.load_s = time.monotonic() - began
            self._log(f"loaded in {self.load_s:.2f} s")
            self.bench.faults.runs(self.toolchains)
            skipped = self.bench.samples[0].unchecked
            checked = [each for name, each in errors.items() if name not in skipped]
            self.max_abs_error = max((absolute for absolute, _ in checked), default=None)
            self.max_rel_error = max((relative for _, relative in checked), default=None)
            self.failure = self._wrong_numbers(errors)
            most = self.bench.settings.most_memory_bytes
            if most and self.failure is None and self.contender.eligible:
                self._keep_to_memory(most)

        in_time = self._until(is_over, load, "it was loaded and run on the samples")
        if self.failure is not None:
            self.close()
        return in_time

    def _until(self, is_over: Callable[[], bool], work: Callable[[Flag], None], doing: str) -> bool:
        """Do something with the placement until the time is over.

        Args:
            is_over: Tells whether it is.
            work: Does it, until the flag that it is given is set.
            doing: What happens to the placement: follows "while".

        Returns:
            Whether there was time for it.
        """
        cancelled = self.bench.cancelled
        flag = FlagWhen(lambda: is_over() or cancelled.is_set())
        try:
            if flag.is_set():
                raise Cancelled("there is no time for it")
            # One that ran before stays: its toolchains failed elsewhere.
            if self.load_s > 0.0 or self._may_be_tried():
                work(flag)
        except Cancelled:
            if cancelled.is_set():
                raise
            self.close()
            return False
        except ModelError:
            raise
        except CollageError as error:
            self.fail(error, doing)
        return True

    @property
    def toolchains(self) -> tuple[str, ...]:
        """Return the toolchains that compile its partitions, in their order."""
        return tuple(dict.fromkeys(part.instance.toolchain for part in self.contender.cover))

    def _log(self, what: str) -> None:
        partitions = counted(len(self.contender.cover), "partition")
        log.info("%s: %s, %s", what, self.contender.title, partitions)

    def _may_be_tried(self) -> bool:
        """Tell whether none of its toolchains is out of the run; else ``failure`` says so."""
        reason = self.bench.faults.reason_against(self.toolchains)
        if reason is not None:
            self.failure = reason
        return reason is None

    def fail(self, error: CollageError, doing: str) -> None:
        """Note as ``failure`` what its process, or its builder, raised.

        A crash or a hang is a fault of its toolchains, unless the run's time is over or something
        outside killed the process.

        Args:
            error: What was raised.
            doing: What happened to the placement meanwhile: follows "while".
        """
        if not isinstance(error, WorkerFault):
            self.failure = str(error)
            return
        late = isinstance(error, WorkerTimeout)
        what = f"{error} while {doing}" if late else str(error)
        self.failure = f"{' with '.join(self.toolchains)}: {what}"
        if not error.from_outside and not (late and self.bench.left_s() <= 0.0):
            self.bench.faults.blame(self.toolchains, what)

    def _start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the process, in which nothing is loaded yet."""
        self.bench.evict_others(self)
        own = self.built.environment if self.built else {}
        self._worker = self.bench.start_worker(
            TRIAL_JOB,
            env=TRIAL_SPIN | own | dict(environment or {}),
            name="collage-trial",
        )

    def rest(self) -> None:
        """End the process; the placement is loaded again when it is asked for something."""
        was_loaded = self._worker is not None
        self.close()
        self._rests = was_loaded

    def _keep_to_memory(self, most: int) -> None:
        """Run the placement for a round, and bar it from winning where it takes too much memory."""
        round_s = self.bench.settings.round_s
        self._call(partial(TrialJob.round, warm_s=0.0, seconds=round_s))
        self.memory = self._call(TrialJob.memory)
        taken = self.memory.running_bytes
        if taken is not None and taken > most:
            self.over_memory = (
                f"beyond the limits: {taken / 1e6:.4g} MB while running, {most / 1e6:.4g} MB are "
                "allowed"
            )
            self.contender = replace(self.contender, barred=self.over_memory)

    def _bounds(self) -> dict[str, float]:
        """Return what error each output may have."""
        bounds, tolerance = self.bench.samples[0].bounds, self.bench.tolerance
        if tolerance > max(bounds.values(), default=0.0):
            bounds = {}  # wherever larger errors are taken, they are taken of any output
        names = (name for name, _ in self.bench.model.outputs)
        return {name: min(tolerance, bounds.get(name, tolerance)) for name in names}

    def _wrong_numbers(self, errors: ErrorsByOutput) -> str | None:
        """Return which output is too far from the true one; None: all are near enough."""
        bounds = self._bounds()
        dtypes = {name: kind.dtype for name, kind in self.bench.model.outputs}
        for name, error in errors.items():
            wrong = wrong_by(error, bounds[name], dtypes[name])
            if wrong is not None:
                what = NOT_ACCURATE if self.contender.reduced else WRONG_NUMBERS
                return f"{what} in the output {name!r}: {wrong}"
        return None

    def _opening(self) -> OpenPlacement:
        """Return the request that has the process load this placement."""
        contender, bench = self.contender, self.bench
        assert self.folder is not None
        return OpenPlacement(
            module=str(self.folder / MODULE_FILE),
            threads=max((part.instance.threads for part in contender.cover), default=1),
            device=next((part.instance.device for part in contender.cover), "cpu").split(":")[0],
            samples=tuple(map(str, bench.sample_folders)),
            inputs=tuple((name, kind.dtype) for name, kind in bench.model.inputs),
            outputs=tuple((name, kind.dtype) for name, kind in bench.model.outputs),
            bounds=self._bounds(),
            loses_nan=bench.has_nan
            and any(
                may_lose_nan(bench.model.graph, part.instance, part.nodes)
                for part in contender.cover
            ),
            streams=bench.settings.streams,
        )

    def timed_round(self) -> list[float] | None:
        """Let the machine rest, then run one round.

        Returns:
            The microseconds of single calls. It is one number where the tail is asked for; and
            where several instances run at once: the time per call of all of them together. None
            where the placement failed, and then ``failure`` says how.

        Raises:
            Cancelled: The user stopped it.
        """
        settings = self.bench.settings
        time.sleep(settings.rest_s)
        request = partial(
            TrialJob.round,
            warm_s=settings.warm_s,
            seconds=settings.round_s,
            tail=settings.tail,
        )
        try:
            taken = self._call(request)
        except Cancelled:
            raise
        except CollageError as error:
            self.fail(error, "it was timed")
            return None
        calls: list[float] = [s * 1e6 for s in taken]
        return [float(np.percentile(calls, TAIL))] if settings.tail else calls

    def partition_times(self, runs: int) -> tuple[list[float], float, float]:
        """Profile the placement and attribute its kernels to partitions.

        Args:
            runs: How many runs of the model the medians are of.

        Returns:
            The microseconds of every partition in the order in which they were built, of the
            kernels that belong to none, and of a call before and after all kernels.
        """
        assert self.built is not None
        profile = self.profile(runs)
        parts_us, between_us = [0.0] * len(self.built.parts), 0.0  # some parts may be views only
        for call, kernel in working_calls(self.built.kernels, profile.calls):
            if kernel is None:
                between_us += call.us
            else:
                parts_us[kernel.part] += call.us
        return parts_us, between_us, profile.call_us

    def profile(self, runs: int, *, inside: bool = False) -> PlacementProfile:
        """Return what its calls take, as the median of some runs; see ``TrialJob.profile``."""
        found: PlacementProfile = self._call(partial(TrialJob.profile, runs=runs, inside=inside))
        return found

    def layers_inside(self, runs: int) -> PlacementProfile:
        """Return what its runtimes say of their layers, from a process of its own."""
        folder = self.bench.folder / "layers"
        folder.mkdir(exist_ok=True)
        self.load(environment={LAYERS_FOLDER: str(folder)})
        found = self.profile(runs, inside=True) if self.failure is None else PlacementProfile()
        self.close()
        return found

    def ask_memory(self) -> None:
        """Note in ``memory`` what the process has taken so far, where it still answers."""
        with contextlib.suppress(WorkerError, ToolchainError):
            self.memory = self._call(TrialJob.memory)

    def _open(self, cancelled: Flag | None = None) -> ErrorsByOutput:
        """Have the process load the placement; return the errors of its outputs on the samples."""
        opening, worker = partial(TrialJob.open, request=self._opening()), self._worker
        assert worker is not None
        until = cancelled or self.bench.cancelled
        errors: ErrorsByOutput = call_again(lambda: worker.call(opening, self._limit_s(), until))
        return errors

    def _limit_s(self) -> float:
        """Return the seconds after which a request counts as hanging; each may load it anew."""
        weights, copies = (
            self.bench.model.record.weights_bytes,
            max(1, self.bench.settings.streams),
        )
        most_s, least_s = (with_weights(s, weights, copies) for s in (LOAD_TIMEOUT_S, LOAD_LEAST_S))
        return within_budget(most_s, self.bench.left_s(), least_s)

    def _call(self, request: Callable[[TrialJob], Any]) -> Any:
        """Ask the process for something; load the placement again where it was unloaded."""
        if self._rests:
            self._rests = False
            self._start()
            self._open()
        worker = self._worker
        assert worker is not None
        return call_again(
            lambda: worker.call(request, self._limit_s(), self.bench.cancelled),
            prepare=self._open,
        )

    def close(self) -> None:
        """End the process; the module stays."""
        self._rests = False
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def discard(self) -> None:
        """End the process and remove the module, unless others built it."""
        self.close()
        if self.folder == self.module_folder:
            (self.folder / MODULE_FILE).unlink(missing_ok=True)
        self.folder = None
