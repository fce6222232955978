"""Tuning our own schedules on an NVIDIA device: every plan that could pay, against the default.

There are some twenty plans of a kernel, so all of them are tried.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from collage_engine.kernels.tuning.device import Built, Device, OpenDevice
from collage_engine.kernels.tuning.subjects import Subject, subject_of
from collage_engine.records.errors import ToolchainError
from collage_engine.records.tuning import TuneRecord, TuneTask

FAMILIES = ("product", "direct")
WORTH = 0.98
"""A plan is better when it takes less than this share of the best one's time."""
BATCH = 8
"""Plans compiled side by side."""


class Bench(Protocol):
    """Where plans of one kernel are built, checked and timed."""

    def prepare(self, plans: tuple[Any, ...]) -> None:
        """Compile them ahead."""
        ...

    def compare(self, plans: tuple[Any, Any]) -> tuple[float, float]:
        """Median seconds of both, in interleaved rounds. ``ToolchainError`` when the second
        cannot be built or run, or its numbers are not the first's.
        """
        ...


OpenBench = Callable[[Subject], contextlib.AbstractContextManager[Bench]]


def tune(
    task: TuneTask,
    known: TuneRecord,
    deadline: float,
    about_to_try: Callable[[str], None],
    better: Callable[[TuneRecord], None],
    open_bench: OpenBench,
) -> TuneRecord:
    """The best plan found before the deadline. ``ToolchainError`` where there is no device."""
    begun = time.monotonic()
    subject = subject_of(task.description)
    default = subject.default
    best = subject.read(known.choice) if known.choice else default
    tried, failed = list(known.tried), list(known.failed)
    times = {"default_us": known.default_us, "tuned_us": known.tuned_us}

    def record(complete: bool) -> TuneRecord:
        return msgspec.structs.replace(
            known,
            choice={} if best == default else best.record(),
            tried=tuple(tried),
            failed=tuple(failed),
            complete=complete,
            **times,
            seconds=known.seconds + time.monotonic() - begun,
        )

    about_to_try("")
    with open_bench(subject) as bench:
        names = {subject.name(p): p for p in subject.plans() if p != default}
        left = [p for name, p in names.items() if name not in tried and name not in failed]
        complete = True
        for start in range(0, len(left), BATCH):
            together = left[start : start + BATCH]
            if time.monotonic() >= deadline:
                complete = False
                break
            bench.prepare((best, *together))
            for plan in together:
                about_to_try(subject.name(plan))
                try:
                    ahead, challenger = bench.compare((best, plan))
                except Exception:  # TVM's own too, of several types: this plan is of no use
                    failed.append(subject.name(plan))
                    continue
                tried.append(subject.name(plan))
                if challenger < WORTH * ahead:
                    best = plan
                    better(record(False))
        if best != default:
            # Many small wins over noise are none: what counts are fresh rounds.
            about_to_try(subject.name(best))
            before, after = bench.compare((default, best))
            times = {"default_us": before * 1e6, "tuned_us": after * 1e6}
            if after >= WORTH * before:
                best = default
    return record(complete)


def bench_on(open_device: OpenDevice, architecture: str) -> OpenBench:
    """Benches on a device of the architecture."""

    @contextlib.contextmanager
    def opened(subject: Subject) -> Iterator[Bench]:
        with open_device(architecture) as device:
            yield DeviceBench(subject, device)

    return opened


class DeviceBench:
    """Kernels of one subject; what follows a split sum is estimated by what it moves."""

    def __init__(self, subject: Subject, device: Device) -> None:
        self._subject, self._device = subject, device
        self._built: dict[Any, Built | str] = {}

    def prepare(self, plans: tuple[Any, ...]) -> None:
        kernels, wanted = [], []
        for plan in plans:
            if plan in self._built:
                continue
            try:
                kernels.append(self._subject.kernel(plan))
                wanted.append(plan)
            except ToolchainError as error:
                self._built[plan] = str(error)
        made = self._device.built(kernels, [self._subject.split(p) for p in wanted])
        self._built.update(zip(wanted, made, strict=True))

    def compare(self, plans: tuple[Any, Any]) -> tuple[float, float]:
        self.prepare(plans)
        first, second = (self._built[plan] for plan in plans)
        if isinstance(first, str) or isinstance(second, str):
            raise ToolchainError(first if isinstance(first, str) else str(second))
        one, two = self._device.compare(first, second)
        return one + self._subject.adding(plans[0]), two + self._subject.adding(plans[1])
