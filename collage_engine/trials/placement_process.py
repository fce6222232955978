"""One placement, built into a module and loaded in a process of its own.

A process of its own with its own environment, so that no thread pool of one placement spins in
another's time. The process sleeps on its pipe until it is asked for something.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from collage_engine.candidates.catalog import may_lose_nan
from collage_engine.lowering.accuracy import wrong_by
from collage_engine.lowering.build import BuildCover
from collage_engine.lowering.built import MODULE_FILE, BuiltModule, attribute_kernels
from collage_engine.machine.device import WARM_S
from collage_engine.machine.faults import FaultTracker
from collage_engine.machine.worker import Worker, WorkerFault, WorkerTimeout, call_again
from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import ModelRecord
from collage_engine.records.placement import MemorySeen
from collage_engine.support.errors import Cancelled, CollageError, ModelError
from collage_engine.support.files import write_npz
from collage_engine.support.text import counted
from collage_engine.support.time_limits import (
    ANSWER_S,
    LEAST_S,
    WORK_S,
    Flag,
    with_weights,
    within_budget,
)
from collage_engine.timing.child import WRONG_NUMBERS
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.trial_job import (
    LAYERS_FOLDER,
    LONG_ROUND_S,
    PAUSE_S,
    OpenPlacement,
    OutputErrors,
    PeakMemory,
    PlacementProfile,
    ProfilePlacement,
    Request,
    RunRound,
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
TAIL = 99
"""The percentile of a round's calls that stands for it where the tail is the objective."""

StartWorker = Callable[..., Worker]
"""Makes a worker of a target, its environment and a name; ``machine.worker.Worker`` does."""


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """How placements are built, and how a round of one goes: a rest, a warm-up, then timed calls.

    Attributes:
        round_s: Seconds of timed calls, one at least; chosen: with some ten contenders, two rounds
            a second.
        warm_s: Seconds of calls before, at least one.
        rest_s: Seconds of rest before these.
        tail: Whether a round's slowest calls stand for it, so that every interruption counts.
        streams: Instances that work without a pause, in one process, each with threads and
            processors of its own; 0: single calls are timed, of one instance.
        spin: Whether idle threads spin; None: as ``build.may_spin`` says.
        most_memory_bytes: Resident memory of a running placement, from which on it cannot win; 0:
            any is allowed.
    """

    round_s: float = 0.04
    """Chosen: with some ten contenders, two rounds a second."""
    warm_s: float = WARM_S
    rest_s: float = PAUSE_S
    tail: bool = False
    streams: int = 0
    spin: bool | None = None
    most_memory_bytes: int = 0


def build_request(
    model: ModelRecord, cover: Sequence[Candidate], *, spin: bool | None, folder: str
) -> BuildCover:
    """Return the request to build a cover of a model into a folder, or only to open the model."""
    return BuildCover(
        model=model.path,
        shapes=dict(model.shapes),
        cover=tuple(cover),
        spin=spin,
        folder=folder,
        sha256=model.sha256,
    )


class TrialBench:
    """What the trials of one model share: the model's file, the samples, how they are run.

    Attributes:
        model: What placements compute.
        folder: Scratch space that outlives whatever is wanted of the modules.
        samples: A folder for each sample.
        bounds: What error an output is allowed, where outputs are allowed different ones.
        unchecked: The outputs whose errors say nothing.
        has_nan: Whether a true output holds NaN, which some toolchains may lose.
        tolerance: On ``max|y-r| / max|r|`` of the outputs.
        settings: How placements are built and run.
        cancelled: Ends every call when it is set.
        start_worker: Makes a process; tests give another one.
        faults: Which toolchains crashed or hung in this run.
        left_s: Returns the seconds that the run has left: who takes too much of them is out.
        exclusive: Whether several placements would take too much memory together.
    """

    def __init__(
        self,
        model: ImportedModel,
        samples: Sequence[Sample],
        tolerance: float,
        folder: Path,
        *,
        settings: TrialSettings | None = None,
        cancelled: Flag | None = None,
        start_worker: StartWorker = Worker,
        faults: FaultTracker | None = None,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """Write the samples; no process is started yet."""
        self.model = model
        self.folder = folder
        self.samples = tuple(folder / f"sample{k}" for k, _ in enumerate(samples, start=1))
        for place, sample in zip(self.samples, samples, strict=True):
            place.mkdir(parents=True, exist_ok=True)
            write_npz(place / "inputs.npz", sample.inputs)
            write_npz(place / "outputs.npz", sample.truth)
        self.has_nan = any(
            "float" in array.dtype.name and bool(np.isnan(array).any())
            for sample in samples
            for array in sample.truth.values()
        )
        self.bounds = dict(samples[0].bounds)
        self.unchecked = samples[0].unchecked
        self.tolerance = tolerance
        self.exclusive = model.record.weights_bytes >= ONE_LOADED_FROM_BYTES
        self.settings = settings or TrialSettings()
        if self.exclusive:
            # Each round follows loading, so that it is longer and begins with a longer warm-up.
            self.settings = replace(self.settings, warm_s=LONG_ROUND_S, round_s=LONG_ROUND_S)
        self.cancelled = cancelled or Event()
        self.start_worker = start_worker
        self.faults = faults or FaultTracker()
        self.left_s = left_s
        self._holder: PlacementProcess | None = None

    def evict_others(self, process: PlacementProcess | None) -> None:
        """Where one placement may be loaded, unload it for another one or for nobody."""
        before, self._holder = self._holder, process
        if self.exclusive and before is not None and before is not process:
            before.rest()


class PlacementProcess:
    """A placement on its way through a trial: built, loaded, timed, closed.

    Attributes:
        contender: The placement.
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

    def __init__(self, contender: Contender, bench: TrialBench, module_folder: Path) -> None:
        """Prepare; nothing is built or started yet.

        Args:
            contender: the placement.
            bench: the samples and the model, and how it is run.
            module_folder: a folder of its own, not there yet.
        """
        self.contender = contender
        self.failure: str | None = None
        self.folder: Path | None = None
        self.built: BuiltModule | None = None
        self.max_abs_error: float | None = None
        self.max_rel_error: float | None = None
        self.memory: MemorySeen | None = None
        self.over_memory: str | None = None
        self.load_s = 0.0
        self._bench = bench
        self._module_folder = module_folder
        self._worker: Worker | None = None
        self._rests = False
        """Whether it was unloaded for others and is loaded again when it is asked for something."""

    @property
    def loaded(self) -> bool:
        """Tell whether it is in a process now, or will be when it is asked for something."""
        return self._worker is not None or self._rests

    @property
    def can_win(self) -> bool:
        """Tell whether it can be exported: it runs, its numbers are right, and nothing bars it."""
        return self.failure is None and self.folder is not None and self.contender.eligible

    def use(self, folder: Path, built: BuiltModule) -> None:
        """Take a module that was built before instead of building one."""
        self.folder, self.built = folder, built

    def build(self, builder: Worker, cancelled: Flag | None = None) -> None:
        """Have a worker of ``BUILD_JOB`` build the placement; ``failure`` says where it cannot.

        Args:
            builder: the worker.
            cancelled: ends the build when it is set; None: what ends every other call.

        Raises:
            ModelError: the model's file has changed.
            Cancelled: the user stopped it.
        """
        bench, model = self._bench, self._bench.model.record
        bench.evict_others(None)
        cover, spin = self.contender.cover, bench.settings.spin
        request = build_request(model, cover, spin=spin, folder=str(self._module_folder))
        began = time.monotonic()
        if not self._may_be_tried():
            return
        most_s, least_s = (with_weights(s, model.weights_bytes) for s in (WORK_S, BUILD_LEAST_S))
        # What has no answer yet may take all the time: half of it would be no use for another one.
        limit_s = min(most_s, max(bench.left_s(), least_s))
        try:

            def attempt() -> BuiltModule:
                # One that was killed, or cut off before, may have begun to write.
                shutil.rmtree(self._module_folder, ignore_errors=True)
                built: BuiltModule = builder.call(request, limit_s, cancelled or bench.cancelled)
                return built

            self.built = call_again(attempt)
            self.folder = self._module_folder
            self._log(f"built in {time.monotonic() - began:.2f} s")
        except (Cancelled, ModelError):
            raise
        except CollageError as error:
            self.fail(error, "it was built")

    def load(
        self, cancelled: Flag | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the process, load the placement and check its numbers on every sample.

        Where it cannot be loaded, or its numbers break the tolerance, ``failure`` says so and the
        process is ended.

        Args:
            cancelled: Ends the loading when it is set; None: what ends every other call.
            environment: Variables that the process gets besides its own.

        Raises:
            Cancelled: The user stopped it.
        """
        if self.load_s == 0.0 and not self._may_be_tried():
            return  # one that ran before stays: its toolchains failed elsewhere
        began = time.monotonic()
        self._start(environment)
        try:
            errors: OutputErrors = self._open(cancelled)
            self.load_s = time.monotonic() - began
            self._log(f"loaded in {self.load_s:.2f} s")
            self._bench.faults.runs(self.toolchains)
            skipped = self._bench.unchecked
            checked = [each for name, each in errors.by_output.items() if name not in skipped]
            self.max_abs_error = max((absolute for absolute, _ in checked), default=None)
            self.max_rel_error = max((relative for _, relative in checked), default=None)
            self.failure = self._wrong_numbers(errors)
            most = self._bench.settings.most_memory_bytes
            if most and self.failure is None and self.contender.eligible:
                self._keep_to_memory(most)
        except Cancelled:
            raise
        except CollageError as error:
            self.fail(error, "it was loaded and run on the samples")
        if self.failure is not None:
            self.close()

    @property
    def toolchains(self) -> tuple[str, ...]:
        """Return the toolchains that compile its partitions, in their order."""
        return tuple(dict.fromkeys(part.instance.toolchain for part in self.contender.cover))

    def _log(self, what: str) -> None:
        partitions = counted(len(self.contender.cover), "partition")
        log.info("%s: %s, %s", what, self.contender.title, partitions)

    def _may_be_tried(self) -> bool:
        """Tell whether none of its toolchains is out of the run; else ``failure`` says so."""
        reason = self._bench.faults.reason_against(self.toolchains)
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
        if not error.from_outside and not (late and self._bench.left_s() <= 0.0):
            self._bench.faults.blame(self.toolchains, what)

    def _start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the process, in which nothing is loaded yet."""
        self._bench.evict_others(self)
        own = self.built.environment if self.built else {}
        self._worker = self._bench.start_worker(
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
        self._call(RunRound(warm_s=0.0, seconds=self._bench.settings.round_s))
        self.ask_memory()
        assert self.memory is not None
        taken = self.memory.running_bytes
        if taken is not None and taken > most:
            self.over_memory = (
                f"beyond the limits: {taken / 1e6:.4g} MB while running, {most / 1e6:.4g} MB are "
                "allowed"
            )
            self.contender = replace(self.contender, barred=self.over_memory)

    def _bounds(self) -> dict[str, float]:
        """Return what error each output may have."""
        bounds, tolerance = self._bench.bounds, self._bench.tolerance
        if tolerance > max(bounds.values(), default=0.0):
            bounds = {}  # wherever larger errors are taken, they are taken of any output
        names = (name for name, _ in self._bench.model.outputs)
        return {name: min(tolerance, bounds.get(name, tolerance)) for name in names}

    def _wrong_numbers(self, errors: OutputErrors) -> str | None:
        """Return which output is too far from the true one; None: all are near enough."""
        bounds = self._bounds()
        dtypes = {name: kind.dtype for name, kind in self._bench.model.outputs}
        for name, error in errors.by_output.items():
            wrong = wrong_by(error, bounds[name], dtypes[name])
            if wrong is not None:
                what = NOT_ACCURATE if self.contender.reduced else WRONG_NUMBERS
                return f"{what} in the output {name!r}: {wrong}"
        return None

    def _opening(self) -> OpenPlacement:
        """Return the request that has the process load this placement."""
        contender, bench = self.contender, self._bench
        first, *further = map(str, bench.samples)
        assert self.folder is not None
        return OpenPlacement(
            module=str(self.folder / MODULE_FILE),
            threads=max((part.instance.threads for part in contender.cover), default=1),
            device=next((part.instance.device for part in contender.cover), "cpu"),
            sample=first,
            more=tuple(further),
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

    def reload(self, cancelled: Flag | None = None) -> None:
        """Load the placement again, in another process.

        Where the memory of a process happens to lie can make several percent of the time of the
        very same module.

        Args:
            cancelled: Ends the loading when it is set; None: what ends every other call.
        """
        self.close()
        self.load(cancelled)

    def timed_round(self) -> list[float] | None:
        """Let the machine rest, then run one round.

        Returns:
            The microseconds of single calls. It is one number where the tail is asked for; and
            where several instances run at once: the time per call of all of them together. None
            where the placement failed, and then ``failure`` says how.

        Raises:
            Cancelled: The user stopped it.
        """
        settings = self._bench.settings
        time.sleep(settings.rest_s)
        request = RunRound(warm_s=settings.warm_s, seconds=settings.round_s, tail=settings.tail)
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
        seen = [(kernel.kernel, kernel.us) for kernel in profile.calls]
        taken, outside = attribute_kernels(self.built.kernels, seen)
        taken += [0.0] * (len(self.built.parts) - len(taken))  # the last ones may be views only
        return taken, sum(us for _, us in outside), profile.call_us

    def profile(self, runs: int, *, inside: bool = False) -> PlacementProfile:
        """Return what its calls take, as the median of some runs; see ``ProfilePlacement``."""
        found: PlacementProfile = self._call(ProfilePlacement(runs=runs, inside=inside))
        return found

    def layers_inside(self, runs: int) -> PlacementProfile:
        """Return what its runtimes say of their layers, from a process of its own."""
        folder = self._bench.folder / "layers"
        folder.mkdir(exist_ok=True)
        self.close()
        self.load(environment={LAYERS_FOLDER: str(folder)})
        found = self.profile(runs, inside=True) if self.failure is None else PlacementProfile()
        self.close()
        return found

    def ask_memory(self) -> None:
        """Note in ``memory`` what the process has taken so far."""
        self.memory = self._call(PeakMemory())

    def _open(self, cancelled: Flag | None = None) -> OutputErrors:
        """Have the process load the placement; return the errors of its outputs on the samples."""
        opening = self._opening()
        worker = self._worker
        assert worker is not None

        def load() -> OutputErrors:
            errors: OutputErrors = worker.call(
                opening, self._limit_s(), cancelled or self._bench.cancelled
            )
            return errors

        return call_again(load)

    def _limit_s(self) -> float:
        """Return the seconds after which a request counts as hanging; each may load it anew."""
        weights, copies = (
            self._bench.model.record.weights_bytes,
            max(1, self._bench.settings.streams),
        )
        most_s, least_s = (with_weights(s, weights, copies) for s in (LOAD_TIMEOUT_S, LOAD_LEAST_S))
        return within_budget(most_s, self._bench.left_s(), least_s)

    def _call(self, request: Request) -> Any:
        """Ask the process for something; load the placement again where it was unloaded."""
        if self._rests:
            self._rests = False
            self._start()
            self._open()
        worker = self._worker
        assert worker is not None
        return call_again(
            lambda: worker.call(request, self._limit_s(), self._bench.cancelled),
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
        if self.folder == self._module_folder:
            (self.folder / MODULE_FILE).unlink(missing_ok=True)
        self.folder = None
