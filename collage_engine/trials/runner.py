"""The field of a confirmation: contenders built in children, opened in children, run in rounds."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collage_engine.build.build_job import BuildCover
from collage_engine.build.built import MODULE_FILE, BuiltModule
from collage_engine.lowering.npz import write_npz
from collage_engine.machine.cgroups import available_bytes
from collage_engine.machine.cuda import cuda_probe
from collage_engine.machine.worker import Worker, WorkerError
from collage_engine.records.counted import counted
from collage_engine.records.errors import Cancelled, CollageError, ModelError, ToolchainError
from collage_engine.trials.contender import ContenderResult, Sample
from collage_engine.trials.ranking import settled
from collage_engine.trials.trial_job import (
    KernelTime,
    OpenPlacement,
    PeakMemory,
    ProfilePlacement,
    RunRound,
)

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

BUILD_TIMEOUT_S = 900.0
CALL_TIMEOUT_S = 300.0
HOPELESS_US = 0.5e6
"""Calls longer than this end a hopeless contender after one round, not two."""
REST_S = 0.005
"""Between two contenders: the threads of the one before go to sleep."""

RUNTIME_ONLY = {"TVM_USE_RUNTIME_LIB": "1"}
"""A contender needs TVM's runtime, not its compiler: half the time to start, less memory."""

OnProgress = Callable[[int, int, str], None]
"""Steps done, steps in all, what is at work."""

Rounds = dict[int, list[tuple[float, list[float]]]]
"""By ``id`` of the outcome: per round its median call and its calls in µs; NaN: it sat out."""


@dataclass(frozen=True, kw_only=True)
class ConfirmSettings:
    """How long to look. A round of one contender is a warm-up and then calls for ``round_s``."""

    selection_rounds: int = 7
    fresh_rounds: int = 9
    most_rounds: int = 60
    """Of either set, while ties are ties for want of rounds and the budget lasts."""
    round_s: float = 0.04
    warm_s: float = 0.005
    least_calls: int = 2
    budget_s: float = 40.0
    """For all rounds together; at least ``least_rounds`` of each set are run even so."""
    least_rounds: int = 3
    builders: int = 2
    drop_beyond: float = 1.25
    """A contender this many times slower than the best after ``least_rounds`` sits out the rest."""
    contenders: float = 1.08
    """And one this many times slower after twice as many: the time goes to who may still win."""
    hopeless_beyond: float = 3.0
    """And one so many times slower all but the first two."""
    most_at_once: int | None = None
    """Contenders loaded at a time (at least 4); None: what memory holds."""


class Field:
    """Contenders on the track; close it to end their processes."""

    def __init__(
        self,
        model: ImportedModel,
        inputs: Mapping[str, np.ndarray],
        truth: Mapping[str, np.ndarray],
        tolerance: float,
        folder: Path,
        settings: ConfirmSettings,
        cancel: threading.Event | None,
        on_progress: OnProgress,
        more: Sequence[Sample] = (),
    ) -> None:
        """``more``: further samples on which the numbers must be right too."""
        self.model = model
        self.tolerance = tolerance
        self.folder = folder
        self.settings = settings
        self.cancel = cancel
        self.tell = on_progress
        self.done = self.total = 0
        self.lock = threading.Lock()
        self.workers: dict[int, Worker] = {}
        self.sample = folder / "sample"
        self.sample.mkdir(parents=True, exist_ok=True)
        self._write(self.sample, Sample(inputs, truth))
        self.more = [folder / f"sample{k}" for k, _ in enumerate(more, start=2)]
        for place, sample in zip(self.more, more, strict=True):
            place.mkdir(exist_ok=True)
            self._write(place, sample)

    @staticmethod
    def _write(folder: Path, sample: Sample) -> None:
        write_npz(folder / "inputs.npz", sample.inputs)
        write_npz(folder / "outputs.npz", sample.truth)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()

    def step(self, now: str) -> None:
        self.tell(self.done, max(self.total, self.done), now)
        self.done += 1

    # ------------------------------------------------------------------ building

    def build(self, outcomes: list[ContenderResult]) -> None:
        """Build covers in child processes, each on its own next folder."""
        queue = list(enumerate(outcomes))

        def work(number: int) -> None:
            with Worker(
                "collage_engine.build.build_job:BuildJob", name=f"collage-build-{number}"
            ) as worker:
                while True:
                    with self.lock:
                        if not queue:
                            return
                        position, outcome = queue.pop(0)
                        self.step(f"building {outcome.contender.name}")
                    self.build_one(worker, position, outcome)

        count = max(1, min(self.settings.builders, len(outcomes)))
        with ThreadPoolExecutor(max_workers=count) as pool:
            for finished in [pool.submit(work, number) for number in range(count)]:
                finished.result()

    def build_one(self, worker: Worker, position: int, outcome: ContenderResult) -> None:
        """Build one cover in a folder of its own. ModelError: the model file has changed."""
        record = self.model.record
        folder = self.folder / f"contender{position}"
        request = BuildCover(
            model=record.path,
            shapes=dict(record.shapes),
            cover=outcome.contender.cover,
            spin=None,
            folder=str(folder),
            sha256=record.sha256,
        )
        start = time.perf_counter()
        try:
            built: BuiltModule = worker.call(request, BUILD_TIMEOUT_S, self.cancel)
            outcome.folder, outcome.built = folder, built
        except (Cancelled, ModelError):
            raise
        except CollageError as error:
            outcome.reason = str(error)
        outcome.build_s = time.perf_counter() - start

    # ------------------------------------------------------------------ gathering

    def gather(self, outcomes: list[ContenderResult]) -> None:
        """Load every contender in its own child and check its numbers.

        Two at a time; where memory does not hold them all, those there run a heat first and the
        slow ones leave (their figures are the heat's).
        """
        room = self.room()
        if any(part.instance.architecture for o in outcomes for part in o.contender.cover):
            room = min(room, device_room(self.model.record.weights_bytes))
        waiting = [o for o in outcomes if o.reason is None]
        self.done += len(outcomes) - len(waiting)
        while waiting:
            pair, waiting = waiting[:2], waiting[2:]
            if len(self.workers) + len(pair) > room:
                self.heat(outcomes, room - len(pair))
            self._open_all(pair)

    def room(self) -> int:
        """How many contenders fit into the memory there is: each holds its weights a few times."""
        if self.settings.most_at_once is not None:
            return max(4, self.settings.most_at_once)
        each = 250e6 + 4.0 * self.model.record.weights_bytes
        return max(4, int(available_bytes() * 0.6 / each))

    def heat(self, outcomes: list[ContenderResult], places: int) -> None:
        """A few rounds among those there; the slowest leave until ``places`` are kept."""
        times = self.rounds(outcomes, self.settings.least_rounds, 0.0, steps=False)
        here = [o for o in outcomes if id(o) in self.workers and o.reason is None]
        here.sort(key=lambda o: _median_of(times[id(o)]))
        for outcome in here[places:]:
            outcome.heat = times[id(outcome)]
            self.ask_memory(outcome)
            self.workers.pop(id(outcome)).close()
            if outcome.folder is not None:
                (outcome.folder / MODULE_FILE).unlink(missing_ok=True)
                outcome.folder = None  # too slow to be exported

    def reopen(self, outcomes: Sequence[ContenderResult]) -> None:
        """Load contenders again, in new processes: where its memory happens to lie can make
        several percent of the time of the very same module."""
        self.total += len(outcomes)
        here = [o for o in outcomes if id(o) in self.workers]
        for pair in (here[at : at + 2] for at in range(0, len(here), 2)):
            for outcome in pair:
                self.workers.pop(id(outcome)).close()
            self._open_all(pair)

    def _open_all(self, pair: Sequence[ContenderResult]) -> None:
        with ThreadPoolExecutor(max_workers=2) as pool:
            for opened in [pool.submit(self.open, outcome) for outcome in pair]:
                opened.result()

    def open(self, outcome: ContenderResult) -> None:
        with self.lock:
            self.step(f"checking {outcome.contender.name}")
        if outcome.contender.python_session:
            module, onnx_file = None, self.onnx_file()
        else:
            module, onnx_file = str(outcome.folder / MODULE_FILE) if outcome.folder else None, None
        first = outcome.contender.cover[0].instance if outcome.contender.python_session else None
        request = OpenPlacement(
            module=module,
            onnx=onnx_file,
            session=first.toolchain if first else None,
            precision=first.precision if first else "float32",
            threads=max((part.instance.threads for part in outcome.contender.cover), default=1),
            device=next((part.instance.device for part in outcome.contender.cover), "cpu"),
            sample=str(self.sample),
            more=tuple(map(str, self.more)),
            inputs=tuple((name, kind.dtype) for name, kind in self.model.inputs),
            outputs=tuple((name, kind.dtype) for name, kind in self.model.outputs),
        )
        worker = Worker(
            "collage_engine.trials.trial_job:TrialJob",
            env=outcome.built.environment | RUNTIME_ONLY if outcome.built else {},
            name="collage-contender",
        )
        with self.lock:
            self.workers[id(outcome)] = worker
        try:
            errors = worker.call(request, CALL_TIMEOUT_S, self.cancel)
            outcome.max_abs_error, outcome.max_rel_error = errors
            if not outcome.max_rel_error <= self.tolerance:
                what = "not accurate enough" if outcome.reduced else "wrong numbers"
                outcome.reason = (
                    f"{what}: max_rel_error {outcome.max_rel_error:.2g} "
                    f"is above {self.tolerance:.2g}"
                )
        except Cancelled:
            raise
        except CollageError as error:
            outcome.reason = str(error)
        if outcome.reason is not None:
            with self.lock:
                self.workers.pop(id(outcome)).close()

    def onnx_file(self) -> str:
        """The user's own file; what was imported where that is gone."""
        path = Path(self.model.record.path)
        if path.is_file():
            return str(path)
        import onnx

        written = self.folder / "model.onnx"
        if not written.exists():
            onnx.save(self.model.onnx, written)
        return str(written)

    # ------------------------------------------------------------------ timing

    def rounds(
        self, outcomes: list[ContenderResult], count: int, budget_s: float, *, steps: bool = True
    ) -> Rounds:
        """Rounds over all contenders there, in changing order.

        One that is hopelessly slower than the best sits out after a round or two, one that is
        clearly slower from the fourth on: their figures are known well enough. Ends after
        ``count`` rounds (``most_rounds`` where the verdict is not settled by then), or when the
        budget is spent, not before ``least_rounds``. A contender that fails gets its reason and
        leaves; one that left in a heat brings its rounds from there.
        """
        settings = self.settings
        live = [o for o in outcomes if o.reason is None and id(o) in self.workers]
        taken: Rounds = {id(o): [] for o in live}
        shuffle = random.Random(count)
        end = time.monotonic() + budget_s
        sitting: set[int] = set()
        for number in range(max(count, settings.most_rounds) if steps else count):
            if number >= settings.least_rounds and time.monotonic() > end:
                self.done += max(0, count - number)
                break
            if number >= count and self._settled(live, taken):
                break
            if number == 1:
                sitting = self._behind(live, taken, settings.hopeless_beyond, HOPELESS_US)
            elif number == 2:
                sitting |= self._behind(live, taken, settings.hopeless_beyond)
            elif number == settings.least_rounds:
                sitting |= self._behind(live, taken, settings.drop_beyond)
            elif number == 2 * settings.least_rounds:
                sitting |= self._behind(live, taken, settings.contenders)
            if steps:
                self.total += number >= count
                self.step(
                    f"round {number + 1} of {max(count, number + 1)}, "
                    f"{counted(len(live) - len(sitting), 'contender')}"
                )
            for outcome in shuffle.sample(live, len(live)):
                if id(outcome) in sitting:
                    taken[id(outcome)].append((math.nan, []))
                    continue
                calls = self.one_round(outcome)
                if outcome.reason is not None:
                    live.remove(outcome)
                    del taken[id(outcome)]
                    continue
                taken[id(outcome)].append((float(np.median(calls)), calls))
        if steps:
            taken.update({id(o): o.heat for o in outcomes if o.heat and o.reason is None})
        return taken

    def _settled(self, live: list[ContenderResult], taken: Rounds) -> bool:
        fit = [(o, [median for median, _ in taken[id(o)]]) for o in live if o.exportable]
        return not fit or settled(fit)

    def _behind(
        self, live: list[ContenderResult], taken: Rounds, factor: float, least_us: float = 0.0
    ) -> set[int]:
        """Those whose best round so far is this many times the best exportable one's median.

        Their best round: on a busy machine a contender with spinning threads may meet several bad
        ones, and would sit out for bad luck.
        """
        lowest = {id(o): min(m for m, _ in taken[id(o)] if m == m) for o in live}
        best = min((_median_of(taken[id(o)]) for o in live if o.exportable), default=math.inf)
        return {key for key, us in lowest.items() if us > max(best * factor, least_us)}

    def one_round(self, outcome: ContenderResult) -> list[float]:
        settings = self.settings
        request = RunRound(
            warm_s=settings.warm_s, seconds=settings.round_s, least=settings.least_calls
        )
        time.sleep(REST_S)
        try:
            seconds: list[float] = self.workers[id(outcome)].call(
                request, CALL_TIMEOUT_S, self.cancel
            )
        except Cancelled:
            raise
        except CollageError as error:
            outcome.reason = str(error)
            return []
        return [s * 1e6 for s in seconds]

    def leave(self, outcome: ContenderResult) -> None:
        """End a contender's process and remove its module: its figures are known."""
        worker = self.workers.pop(id(outcome), None)
        if worker is not None:
            worker.close()
        if outcome.folder is not None:
            (outcome.folder / MODULE_FILE).unlink(missing_ok=True)

    # ------------------------------------------------------------------ looking inside

    def profile(self, outcome: ContenderResult, runs: int = 9) -> list[KernelTime]:
        """Times of the kernels of a contender, in runs apart from the timed ones."""
        kernels: list[KernelTime] = self.workers[id(outcome)].call(
            ProfilePlacement(runs=runs), CALL_TIMEOUT_S, self.cancel
        )
        return kernels

    def peak_memory(self, outcomes: list[ContenderResult]) -> None:
        """Ask every contender still there for its resident sizes."""
        for outcome in outcomes:
            if outcome.reason is None and id(outcome) in self.workers:
                # One that has just died keeps its times: its memory is not known.
                with contextlib.suppress(WorkerError, ToolchainError):
                    self.ask_memory(outcome)

    def ask_memory(self, outcome: ContenderResult) -> None:
        outcome.memory = self.workers[id(outcome)].call(PeakMemory(), CALL_TIMEOUT_S, self.cancel)


def device_room(weights_bytes: int) -> int:
    """How many processes fit into a device's memory: each has a context there."""
    memory = min((device.memory_bytes for device in cuda_probe().devices), default=0)
    return max(4, int(memory * 0.8 / (600e6 + 3.0 * weights_bytes)))


def _median_of(rounds: list[tuple[float, list[float]]]) -> float:
    return float(np.nanmedian([median for median, _ in rounds]))
