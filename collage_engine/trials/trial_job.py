"""What a placement's own process does: load it, check its numbers, run rounds when it is asked.

Nothing of the model is imported here: a placement is its exported module, as a user would load it.
Between rounds the child sleeps on its pipe.

Its memory is read as Linux counts it (elsewhere it is not known). The largest resident size can be
reset (``/proc/self/clear_refs``), so that loading, which holds a model twice for a moment, and
running are distinguished.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from collage_engine.lowering.accuracy import wrong_by
from collage_engine.lowering.built import run_python_parts
from collage_engine.lowering.stopwatch import KernelTime, time_kernels
from collage_engine.machine.device import WARM_S
from collage_engine.machine.loader.run_artifact import (
    Model,
    Pool,
    error_of,
    load_runtime,
    read_npz,
)
from collage_engine.records.placement import MemorySeen
from collage_engine.support.errors import ToolchainError
from collage_engine.timing.child import WRONG_NUMBERS, timed

LAYERS_FOLDER = "COLLAGE_LAYERS"
"""The environment variable with which runtimes note what their layers take (``collage_module.h``):
a folder for their files."""
LAYERS = "collage.layers"
"""The function of a runtime's module that says what it noted."""
PAUSE_S = WARM_S
"""Seconds of rest before a round, in which the threads of the placement before go to sleep: as long
as the calls between the rest and those that are timed. In a pause the processor time of a process
is compared with the wall time, too."""
SPINNING_SHARE = 0.25
"""Share of that time from which on its threads are taken to spin still; chosen."""
LONG_ROUND_S = 100 * PAUSE_S
"""Seconds of a round of a placement that was loaded just for it, of several instances at once, or
whose slowest calls are compared: a hundred calls of up to 5 ms, and long beside the moment in which
instances start. Threads that have not gone to sleep by then never do."""


class OpenPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Load a module (``model.so``)."""

    module: str
    threads: int = 1
    device: str = "cpu"
    """Where the module runs: ``cpu`` or ``cuda``."""
    samples: tuple[str, ...]
    """Folders with ``inputs.npz`` and ``outputs.npz``, of which the first one is timed."""
    inputs: tuple[tuple[str, str], ...]
    """Name and element type, in argument order."""
    outputs: tuple[tuple[str, str], ...]
    bounds: dict[str, float]
    """By output the error that it may have, for the comparison after each round."""
    loses_nan: bool = False
    """Whether NaN may become a number, as its toolchains say."""
    streams: int = 0
    """Instances that rounds run at once, each in a thread that has processors of its own; 0: one,
    whose single calls are timed."""


ErrorsByOutput = dict[str, tuple[float, float]]
"""The largest absolute and the largest relative error of each output."""


class PlacementProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts of a placement take in a run of it."""

    calls: tuple[KernelTime, ...] = ()
    call_us: float = 0.0
    """Microseconds of a run before the first of these and after the last one: a user's call copies
    inputs and outputs there."""
    inside: tuple[str, ...] = ()
    """What runtimes said of the layers of their partitions, as JSON."""


def load_model(request: OpenPlacement, sample: dict[str, np.ndarray], number: int = 0) -> Model:
    """Load a placement as users load its artifact, in the thread that it belongs to.

    Args:
        request: What is loaded.
        sample: The sample's inputs by name.
        number: The instance's number; from the second on, each has a state of its own.
    """
    if number == 0:
        run_python_parts(request.module)
    inputs = [
        {"name": name, "shape": sample[name].shape, "dtype": dtype}
        for name, dtype in request.inputs
    ]
    outputs = [{"name": name, "shape": None, "dtype": dtype} for name, dtype in request.outputs]
    manifest = {"device": request.device, "inputs": inputs, "outputs": outputs}
    return Model(Path(request.module).parent, manifest, number > 0)


class TrialJob:
    """The state of a trial process: the placement that is open, bound to its sample.

    A request is a method with its arguments (``partial``).
    """

    _opened: OpenPlacement
    _model: Model
    """What is open; of several instances the first."""
    _sample: dict[str, np.ndarray]
    """The inputs that rounds run on."""
    _threads: int = 0
    """Threads of the open contender; 0: its work is on a device."""
    _memory: MemoryWatch
    _pool: Pool | None = None
    """The instances, where several run at once."""
    _calls: int = 0
    """Calls so far, for the message of a placement that goes wrong after some."""
    _other: tuple[dict[str, np.ndarray], list[np.ndarray]] | None = None
    """Other inputs than the sample's, and what the placement made of them when it was new."""

    def __call__(self, request: Callable[[TrialJob], Any]) -> Any:
        """Answer a request."""
        return request(self)

    def open(self, request: OpenPlacement) -> ErrorsByOutput:
        """Return the errors of the outputs on the samples.

        The first sample stays bound: it is what rounds run on.
        """
        self._opened = request
        self._threads = request.threads if request.device == "cpu" else 0
        self._sample = sample = _values(request.samples[0], "inputs", request.inputs)
        # What every artifact needs is no part of this one's memory.
        load_runtime(Path(request.module).parent, request.device)
        self._memory = MemoryWatch()
        if request.streams:
            self._pool = Pool(
                lambda number: load_model(request, sample, number),
                request.streams,
                request.threads,
            )
            loaded = self._pool.at_once(lambda model: (model, model(sample)))
        else:
            model = load_model(request, sample)
            loaded = [(model, model(sample))]
        self._model = loaded[0][0]
        self._memory.loaded()
        truth = self._truth(request.samples[0])
        errors = [self._errors(outputs, truth) for _, outputs in loaded]
        for folder in request.samples[1:]:
            outputs = self._on(_values(folder, "inputs", request.inputs))
            errors.append(self._errors(outputs, self._truth(folder)))
        other = turned(sample)
        # Its own sample would not do for the comparisons after rounds: what a library leaves
        # unwritten in memory that is used again is the right result of the call before. A model may
        # be defined on its sample, and on little else.
        with contextlib.suppress(Exception):
            self._other = other, self._on(other)
        return {  # the worst over all samples
            name: (max(one[name][0] for one in errors), max(one[name][1] for one in errors))
            for name in errors[0]
        }

    def _truth(self, folder: str) -> list[np.ndarray]:
        """Return the true outputs of a sample, in order."""
        outputs = self._opened.outputs
        values = _values(folder, "outputs", outputs)
        return [values[name] for name, _ in outputs]

    def _errors(self, results: list[np.ndarray], truth: list[np.ndarray]) -> ErrorsByOutput:
        """Return the largest absolute and relative error of each output, by its name."""
        opened = self._opened
        return {
            name: error_of(computed, right, loses_nan=opened.loses_nan)
            for (name, _), computed, right in zip(opened.outputs, results, truth, strict=True)
        }

    def round(self, warm_s: float, seconds: float, tail: bool = False) -> list[float]:
        """Run one round and return the seconds of its calls, as a user makes them.

        ``timing.child`` says what is part of these. Several instances give one number: the seconds
        in which each of them calls again and again, over all their calls.

        Args:
            warm_s: Seconds of calls that are not timed, one call at least.
            seconds: As many calls are timed as they hold, one at least.
            tail: Whether the slowest calls matter: what interrupts a call is then part of its time.

        Raises:
            ToolchainError: The outputs are wrong by now.
        """
        if self._pool is not None:
            taken_by_all = self._round_of_all(seconds)
            self._compare_again([])
            return [taken_by_all]
        call = self._model.user_call(self._sample)
        clock = time.perf_counter
        begin = clock()
        end = begin + warm_s
        call()
        # Where no second call fits in, none more is made for the comparison, either.
        slow = clock() - begin >= seconds / 2 > 0
        self._calls += 1
        while clock() < end:
            call()
            self._calls += 1
        taken: list[float] = []
        kept: list[Any] = []
        run = (lambda: kept.append(call())) if slow else call
        end = clock() + seconds
        while not taken or clock() + taken[-1] < end:
            taken.append(timed(run, 0 if tail else self._threads))
        self._calls += len(taken)
        self._compare_again(kept[-1:])
        if self._threads > 1:
            until_asleep()
        return taken

    def _on(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of what is open on some inputs."""
        if self._pool is None:
            return self._model(inputs)
        return self._pool.with_one(lambda model: model(inputs))

    def _compare_again(self, kept: list[Any]) -> None:
        """Compare outputs after a round with what they have to be.

        A library that goes wrong after some calls (a lost device, memory that ran out, a race) may
        be very fast from then on.

        Args:
            kept: What a call of the round gave, where calls are so slow that none more is made.

        Raises:
            ToolchainError: An output is wrong.
        """
        if kept:
            truth = self._truth(self._opened.samples[0])
            results = kept[0] if self._threads > 0 else self._model.arrays(kept[0])
        elif self._other is not None:
            inputs, truth = self._other
            results = self._on(inputs)
        else:
            return
        errors = self._errors(results, truth)
        for name, dtype in self._opened.outputs:
            wrong = wrong_by(errors[name], self._opened.bounds[name], dtype)
            if wrong is not None:
                raise ToolchainError(
                    f"{WRONG_NUMBERS} in the output {name!r} after {self._calls} calls: {wrong}"
                )

    def _round_of_all(self, seconds: float) -> float:
        """Return the seconds per call of all instances together, each calling without a pause."""
        assert self._pool is not None

        def work(model: Model) -> float:
            clock, call = time.perf_counter, model.user_call(self._sample)
            call()
            begin, count = clock(), 0
            while not count or clock() - begin < seconds:
                call()
                count += 1
            self._calls += count
            return count / (clock() - begin)

        return 1.0 / sum(self._pool.at_once(work))

    def profile(self, runs: int, inside: bool = False) -> PlacementProfile:
        """Return the median time of every VM call, in order.

        Nothing on a device, where calls return before their work is done and a graph holds many.

        Args:
            runs: How many runs of the model are timed.
            inside: Whether runtimes are asked what they noted of their layers, which ends the
                placement: it was loaded in an environment with ``LAYERS_FOLDER``.
        """
        model = self._model
        if self._threads == 0:
            return PlacementProfile()
        calls, call_us = time_kernels(model, model.user_call(self._sample), runs)
        runtimes = model.library.imports if inside else []
        own = [module for module in runtimes if module.implements_function(LAYERS)]
        answers = [module.get_function(LAYERS) for module in own]
        return PlacementProfile(
            calls=tuple(calls),
            call_us=call_us,
            inside=tuple(filter(None, (str(answer()) for answer in answers))),
        )

    def memory(self) -> MemorySeen:
        """Return the resident sizes so far."""
        return self._memory.seen()


def turned(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return other inputs of the same values: those of floats (else of matrices) in reverse order.

    Args:
        inputs: By name; numbers that may be sizes or lengths, which are scalars and vectors of
            integers, stay as they are.
    """
    floats = {name for name, array in inputs.items() if array.dtype.kind not in "biuS"}
    matrices = {name for name, array in inputs.items() if array.ndim >= 2}
    moved = floats or matrices
    return {
        name: array.reshape(-1)[::-1].reshape(array.shape).copy() if name in moved else array
        for name, array in inputs.items()
    }


def until_asleep(
    used: Callable[[], float] = time.process_time,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the threads of a pool no longer spin: the next contender needs their processors.

    ONNX Runtime's threads spin for some 60 ms after a call, TVM's for 15 ms and libgomp's for 10
    ms. That is longer than a round of another contender, which then had one processor less.

    Args:
        used: Returns the processor time of this process in seconds.
        clock: Returns the wall time in seconds.
        sleep: Waits for some seconds.
    """
    end = clock() + LONG_ROUND_S
    while clock() < end:
        before = used()
        sleep(PAUSE_S)
        if used() - before < SPINNING_SHARE * PAUSE_S:
            return


def _values(folder: str, name: str, kinds: tuple[tuple[str, str], ...]) -> dict[str, np.ndarray]:
    """Read the arrays of a sample's folder by name: its ``inputs`` or its ``outputs``."""
    return read_npz(Path(folder) / f"{name}.npz", dict(kinds))


STATUS = Path("/proc/self/status")
"""Where Linux states the sizes of this process, in KiB."""
RESET = Path("/proc/self/clear_refs")
"""Where writing ``5`` sets the largest resident size (``VmHWM``) to the present one (proc(5))."""


def status_bytes(field: str) -> int | None:
    """Return a size of this process as Linux states it, in bytes.

    Args:
        field: The line of ``/proc/self/status``: ``VmRSS``, ``VmHWM`` or ``RssAnon``.

    Returns:
        The size; None where there is no such line, or no ``/proc``.
    """
    with contextlib.suppress(OSError):
        found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else None
    return None


class MemoryWatch:
    """Reads the sizes of this process around loading and running a module."""

    def __init__(self) -> None:
        self.base = status_bytes("VmRSS")
        self._load_peak: int | None = None
        self._reset = False

    def loaded(self) -> None:
        """Note the sizes after the module was loaded and has run once, and begin a new peak."""
        self._load_peak = status_bytes("VmHWM")
        with contextlib.suppress(OSError):
            RESET.write_text("5")
            self._reset = True

    def seen(self) -> MemorySeen:
        """Return the sizes that were noted, and the peak since the module was loaded."""
        now = status_bytes("VmHWM")
        return MemorySeen(
            peak_bytes=max(now or 0, self._load_peak or 0) or None,
            base_bytes=self.base,
            load_peak_bytes=self._load_peak,
            run_peak_bytes=now if self._reset else None,
        )
