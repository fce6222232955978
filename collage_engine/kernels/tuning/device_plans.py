"""Tunes our own schedules on an NVIDIA device: every plan that could pay, against the default.

There are some twenty plans of a kernel, so all of them are tried.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from collage_engine.kernels.cuda.cuda_rule import CudaRule, bare_kernel
from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.registry import RULES
from collage_engine.kernels.rule import Decision
from collage_engine.kernels.tuning.device import Built, Device, OpenDevice
from collage_engine.records.errors import ToolchainError
from collage_engine.records.reasons import short_reason
from collage_engine.records.tuning import TuneRecord, TuneTask

LOG = logging.getLogger(__name__)

WORTH = 0.98
"""A plan is better when it takes less than this share of the best one's time. Chosen: what medians
of interleaved rounds on a device tell apart."""
BATCH = 8
"""Plans that are compiled side by side. Chosen: the compiler takes one processor for each."""

Choice = Decision[Any, Any]


class Bench(Protocol):
    """The protocol of a bench that builds, checks and times one problem's kernels."""

    def prepare(self, decisions: tuple[Choice, ...]) -> None:
        """Compiles the kernels of decisions ahead, so that comparing does not wait for it."""
        ...

    def compare(self, decisions: tuple[Choice, Choice]) -> tuple[float, float]:
        """Returns the median seconds of both, in interleaved rounds.

        Raises:
            ToolchainError: The second cannot be built or run, or its numbers are not the first's.
        """
        ...


OpenBench = Callable[[Choice], contextlib.AbstractContextManager[Bench]]
"""A function that opens a bench for the problem of a decision."""


def default_decision(task: TuneTask, gpu: Gpu) -> Choice:
    """Returns what is done without tuning for a task's problem.

    Raises:
        ToolchainError: No rule takes the problem.
    """
    found = RULES.default(RULES.problem(task.description), gpu)
    if found is None:
        raise ToolchainError(f"no kernel rule takes {task.workload}")
    return found


def tune(
    task: TuneTask,
    known: TuneRecord,
    deadline: float,
    better: Callable[[TuneRecord], None],
    open_bench: OpenBench,
    gpu: Gpu,
) -> TuneRecord:
    """Try every plan of a problem until the deadline.

    Args:
        task: The problem.
        known: What earlier searches found; what they tried is not tried again.
        deadline: Seconds on ``time.monotonic``'s clock.
        better: Is given what was found so far, should this process not live to return.
        open_bench: Where kernels are built and timed.
        gpu: The device.

    Returns:
        The record with the best plan.

    Raises:
        ToolchainError: There is no device.
    """
    begun = time.monotonic()
    default = default_decision(task, gpu)
    best = default
    if known.choice:
        best = RULES.decide(default.problem, gpu, known.choice) or default
    tried, failed = list(known.tried), list(known.failed)
    times = {"default_us": known.default_us, "tuned_us": known.tuned_us}

    def record(complete: bool) -> TuneRecord:
        return msgspec.structs.replace(
            known,
            choice={} if best == default else best.to_record(),
            tried=tuple(tried),
            failed=tuple(failed),
            complete=complete,
            **times,
            seconds=known.seconds + time.monotonic() - begun,
        )

    with open_bench(default) as bench:
        names = {each.name: each for each in RULES.neighbours(default, gpu)}
        left = [each for name, each in names.items() if name not in tried and name not in failed]
        complete = True
        for start in range(0, len(left), BATCH):
            together = left[start : start + BATCH]
            if time.monotonic() >= deadline:
                complete = False
                break
            bench.prepare((best, *together))
            for challenger in together:
                try:
                    ahead, its = bench.compare((best, challenger))
                except (
                    Exception
                ) as error:  # TVM's own too, of several types: this plan is of no use
                    LOG.info("the plan %s is of no use: %s", challenger.name, short_reason(error))
                    failed.append(challenger.name)
                    continue
                tried.append(challenger.name)
                if its < WORTH * ahead:
                    best = challenger
                    better(record(False))
        if best != default:
            # Many small gains may be noise: only rounds that are taken anew count.
            before, after = bench.compare((default, best))
            times = {"default_us": before * 1e6, "tuned_us": after * 1e6}
            if after >= WORTH * before:
                best = default
    return record(complete)


def bench_on(open_device: OpenDevice, architecture: str) -> OpenBench:
    """Return a function that opens benches on a device of the architecture."""

    @contextlib.contextmanager
    def opened(decision: Choice) -> Iterator[Bench]:
        with open_device(architecture) as device:
            yield DeviceBench(device)

    return opened


class DeviceBench:
    """A bench for kernels of one problem; what adds a split sum's parts is estimated."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._built: dict[str, Built | str] = {}

    def prepare(self, decisions: tuple[Choice, ...]) -> None:
        """Compile the kernels of those that are not compiled yet."""
        kernels, wanted = [], []
        for each in decisions:
            if each.name in self._built:
                continue
            try:
                kernels.append(bare_kernel(each))
                wanted.append(each)
            except ToolchainError as error:
                self._built[each.name] = str(error)
        made = self._device.built(kernels, [_rule(each).gives_parts(each.plan) for each in wanted])
        self._built.update(zip((each.name for each in wanted), made, strict=True))

    def compare(self, decisions: tuple[Choice, Choice]) -> tuple[float, float]:
        """Returns the median seconds of both, with what adding their parts takes."""
        self.prepare(decisions)
        first, second = (self._built[each.name] for each in decisions)
        if isinstance(first, str) or isinstance(second, str):
            raise ToolchainError(first if isinstance(first, str) else str(second))
        one, two = self._device.compare(first, second)
        return one + _adding_s(decisions[0]), two + _adding_s(decisions[1])


def _rule(decision: Choice) -> CudaRule[Any, Any]:
    assert isinstance(decision.rule, CudaRule)
    return decision.rule


def _adding_s(decision: Choice) -> float:
    return _rule(decision).adding_s(decision.problem, decision.plan)
