"""What the measuring child does: compile, check the numbers, time. One model per child.

The parent learns who is to blame for a crash from a *marker*: a few bytes of a mapped file that
are written before anything risky, which costs nothing while timing.
"""

from __future__ import annotations

import gc
import math
import mmap
import os
import resource
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

from collage_engine.machine.cuda_runtime import DeviceFault
from collage_engine.records.cost import Cost, invalid
from collage_engine.records.errors import MeasureError
from collage_engine.records.format import Formats
from collage_engine.records.reasons import short_reason
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.measurement import now_text
from collage_engine.timing.clock import undisturbed
from collage_engine.timing.protocol import (
    ProtocolSettings,
    Rival,
    cost_of,
    time_cold,
    time_rivals,
)
from collage_engine.timing.speed_probe import Guard, Reading, reference, slowness

JOB = "collage_engine.timing.job:MeasureJob"

PHASES = ("", "compiling", "running alone", "being timed")
_MARK = struct.Struct("<ii")

WRONG_NUMBERS = "wrong numbers"
"""How reasons begin that hold for one model's values only, not wherever the key is equal."""


@dataclass(frozen=True)
class OpenRequest:
    """First request to a child: which model, and with which settings."""

    model_path: str
    shapes: dict[str, tuple[int, ...]]
    truth_folder: str
    marker_path: str
    fingerprint: str
    settings: ProtocolSettings = field(default_factory=ProtocolSettings)
    guard: Reading | None = None
    """The guard's reference; None: take it now, and answer with it."""
    sha256: str | None = None
    """Of the model file: another one under its name must not be measured in its stead."""


@dataclass(frozen=True)
class GroupRequest:
    """Rivals over one set of operators; ``instances`` go by their place in the answers."""

    nodes: tuple[int, ...]
    """Operator numbers."""
    instances: dict[int, ToolchainInstance]
    """In this order they are compiled and run alone."""
    formats: dict[int, tuple[Formats, Formats]] = field(default_factory=dict)
    """What the rival in a place takes and gives, by operator number; absent: plain."""
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """A message on the way: the cost of the rival in this place, or that its turn began."""

    place: int
    cost: Cost | None = None


class Prepared(Protocol):
    """A compiled candidate whose numbers were right."""

    time: Rival
    max_rel_error: float

    def warm_inputs(self) -> None: ...

    def close(self) -> None: ...


class Bench(Protocol):
    """What can prepare candidates of one model."""

    cold: bool
    """Whether a cold-weights time is wanted."""

    def prepare(
        self,
        nodes: tuple[int, ...],
        instance: ToolchainInstance,
        about_to_run: Callable[[], None],
        takes: Formats | None = None,
        gives: Formats | None = None,
    ) -> Prepared:
        """Compile, run alone on the true inputs, and check; raises with the reason."""
        ...

    def evict(self) -> None:
        """Empty the caches."""
        ...


class Marker:
    """Which rival is at risk, and doing what: survives the writer's crash."""

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        self.path = Path(path)
        if create:
            self.path.write_bytes(_MARK.pack(-1, 0))
        with self.path.open("r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), _MARK.size)

    def set(self, place: int, phase: int) -> None:
        _MARK.pack_into(self._map, 0, place, phase)

    def get(self) -> tuple[int, int]:
        place, phase = _MARK.unpack_from(self._map, 0)
        return place, phase

    def close(self) -> None:
        self._map.close()


class MeasureJob:
    """The worker's target. Keeps the open model between requests."""

    def __init__(self) -> None:
        self.bench: Bench | None = None
        self.marker: Marker | None = None
        self.opened: OpenRequest | None = None
        self.guard: Guard | None = None

    def __call__(self, request: Any, send: Callable[[Answer], None]) -> Any:
        if isinstance(request, OpenRequest):
            self.guard = Guard()
            known = request.guard or reference(self.guard.read)
            self.opened = replace(request, guard=known)
            self.marker = Marker(request.marker_path)
            self.bench = self.open(request)
            gc.collect()
            gc.freeze()  # the model's records need no looking at between timings
            return known
        if self.bench is None or self.marker is None or self.opened is None:
            raise MeasureError("no model is open in the measuring process")
        assert isinstance(request, GroupRequest)
        return run_group(self.bench, request, self.opened, self.marker, send, self.guard)

    def open(self, request: OpenRequest) -> Bench:
        from collage_engine.timing.bench import ModelBench

        return ModelBench(request)


def run_group(
    bench: Bench,
    request: GroupRequest,
    opened: OpenRequest,
    marker: Marker,
    send: Callable[[Answer], None],
    guard: Guard | None = None,
) -> None:
    """Prepare every rival, then time those whose numbers were right in interleaved rounds.

    Every rival is answered exactly once with a cost.
    """
    ready: dict[int, Prepared] = {}
    try:
        for place, instance in request.instances.items():
            send(Answer(place))
            marker.set(place, 1)

            def about_to_run(place: int = place) -> None:
                marker.set(place, 2)

            try:
                takes, gives = request.formats.get(place, (None, None))
                ready[place] = bench.prepare(request.nodes, instance, about_to_run, takes, gives)
            except DeviceFault as fault:
                end_process(fault)
            except (Exception, SystemExit) as error:
                send(Answer(place, invalid(short_reason(error, with_type=True))))
            marker.set(-1, 0)
        while ready:
            failed = _time(bench, request, opened, ready, marker, send, guard)
            if failed is None:
                return
            ready.pop(failed).close()
    finally:
        marker.set(-1, 0)
        for prepared in ready.values():
            prepared.close()


class _Failed(Exception):
    """A rival raised while it was timed."""

    def __init__(self, place: int, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.place = place
        self.cause = cause


def _time(
    bench: Bench,
    request: GroupRequest,
    opened: OpenRequest,
    ready: dict[int, Prepared],
    marker: Marker,
    send: Callable[[Answer], None],
    guard: Guard | None,
) -> int | None:
    """Time what is ready and answer; the place of one that raised, answered as invalid, or None."""
    places = list(ready)
    # The guard runs on one thread of this processor, and tells nothing of others; and threads that
    # wait for each other scatter by themselves, where one only does when it is disturbed.
    alone = all(i.threads == 1 and not i.architecture for i in request.instances.values())
    read = guard.read if guard is not None and alone else None
    settings = opened.settings if alone else replace(opened.settings, unsettled=math.inf)
    readings: list[Reading] = []

    def guarded(place: int) -> Rival:
        instance = request.instances[place]
        # A device's time is not this process's: its events are asked, whoever runs here.
        threads = instance.threads if not instance.architecture else 0

        def run(calls: int) -> float:
            if read is not None:
                readings.append(read())
            try:
                return undisturbed(lambda: ready[place].time(calls), threads)
            except DeviceFault as fault:
                end_process(fault)
            except Exception as error:
                raise _Failed(place, error) from error

        return run

    told = time.monotonic()

    def about_to_run(place: int) -> None:
        nonlocal told
        marker.set(place, 3)
        if time.monotonic() - told > 1.0:
            # A sign of life: the parent's limit is for one candidate's turn, not for all rounds.
            told = time.monotonic()
            send(Answer(place))

    collecting = gc.isenabled()
    gc.disable()
    try:
        timings = time_rivals(
            [guarded(place) for place in places],
            settings,
            about_to_run=lambda at: about_to_run(places[at]),
            interruptions=lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
            seed=request.seed,
        )
        told_by = list(readings)
        cold: dict[int, float] = {}
        for place in places if bench.cold else ():
            cold[place] = time_cold(
                guarded(place),
                bench.evict,
                ready[place].warm_inputs,
                about_to_run=partial(about_to_run, place),
            )
    except _Failed as failure:
        send(Answer(failure.place, invalid(short_reason(failure.cause, with_type=True))))
        return failure.place
    finally:
        marker.set(-1, 0)
        if collecting:
            gc.enable()
    calm = any(timing.calm for timing in timings)
    slow = slowness(told_by, opened.guard, 25 if calm else 50) if opened.guard else 1.0
    for place, timing in zip(places, timings, strict=True):
        cost = cost_of(
            timing,
            threads=request.instances[place].threads,
            fingerprint=opened.fingerprint,
            measured_at=now_text(),
            max_rel_error=ready[place].max_rel_error,
            cold_s=cold.get(place),
            slowness=slow,
        )
        send(Answer(place, cost))
    return None


LOST_DEVICE = 70
"""Exit status of a child whose device's context is spoiled for good."""


def end_process(fault: DeviceFault) -> NoReturn:
    """End the child at once, the marker still on the culprit: whatever ran in it afterwards would
    fail for no fault of its own."""
    sys.stderr.write(f"{fault}\n")
    sys.stderr.flush()
    os._exit(LOST_DEVICE)


def blame(marker: Marker, places: Sequence[int]) -> tuple[int | None, str]:
    """Who was at risk when the child ended, if it is one of these, and doing what."""
    place, phase = marker.get()
    if place not in places:
        return None, ""
    return place, PHASES[phase] if 0 <= phase < len(PHASES) else ""
