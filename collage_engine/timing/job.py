"""What the measuring child does: compile, check the numbers, time. One model per child.

The parent learns who is to blame for a crash, and ends who takes too long, by a marker
(``machine.risk_marker``) that is written before anything risky.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from collage_engine.machine.cuda_runtime import LOST_DEVICE, DeviceFault
from collage_engine.machine.risk_marker import RiskMarker
from collage_engine.records.cost import invalid
from collage_engine.records.errors import MeasureError
from collage_engine.records.reasons import fault_reason
from collage_engine.store.measurement import now_text
from collage_engine.store.normalising import geometric_mean_us
from collage_engine.timing.clock import undisturbed
from collage_engine.timing.messages import (
    Bench,
    OpenRequest,
    Prepared,
    TimingReply,
    TimingRequest,
)
from collage_engine.timing.order_statistics import prepare
from collage_engine.timing.protocol import TimedCall, Timing, time_cold, time_interleaved
from collage_engine.timing.speed_probe import NAME as PROBE_NAME
from collage_engine.timing.speed_probe import Reading, SpeedProbe, reference, typical
from collage_engine.timing.timing_costs import cost_of

JOB = "collage_engine.timing.job:MeasureJob"

COMPILING, RUNNING, TIMED = "compiling", "running by itself", "being timed"
"""What a candidate that is at risk is doing."""
CALM_PERCENTILE, USUAL_PERCENTILE = 25, 50
"""Percentiles of the speed probe's readings that a group's times are normalised by: the median,
or, where only the faster half of the samples was kept, the middle of the faster half of the
readings."""


class MeasureJob:
    """The target of the measuring child's worker, which keeps the open model between requests."""

    def __init__(self) -> None:
        self.bench: Bench | None = None
        self.marker: RiskMarker | None = None
        self.opened: OpenRequest | None = None
        self.probe: SpeedProbe | None = None

    def __call__(self, request: Any, send: Callable[[TimingReply], None]) -> Any:
        """Open a model, or time one group of candidates of the open model.

        Args:
            request: An ``OpenRequest``, or a ``TimingRequest``.
            send: Takes replies on their way to the parent.

        Returns:
            The speed probe's reference for an ``OpenRequest``; None for a ``TimingRequest``.

        Raises:
            MeasureError: No model is open.
        """
        if isinstance(request, OpenRequest):
            prepare()
            self.probe = SpeedProbe()
            known = request.probe_reference or reference(self.probe.read)
            self.opened = replace(request, probe_reference=known)
            self.marker = RiskMarker(request.marker_path)
            self.bench = self.open(request)
            gc.collect()
            gc.freeze()  # the model's records need no collecting between timings
            return known
        if self.bench is None or self.marker is None or self.opened is None:
            raise MeasureError("no model is open in the measuring process")
        assert isinstance(request, TimingRequest)
        return run_group(self.bench, request, self.opened, self.marker, send, self.probe)

    def open(self, request: OpenRequest) -> Bench:
        """Return the bench that prepares candidates of the requested model."""
        from collage_engine.timing.bench import ModelBench  # imports TVM

        return ModelBench(request)


def run_group(
    bench: Bench,
    request: TimingRequest,
    opened: OpenRequest,
    marker: RiskMarker,
    send: Callable[[TimingReply], None],
    probe: SpeedProbe | None = None,
) -> None:
    """Prepare every candidate, then time those whose numbers were right in interleaved rounds.

    Every candidate is answered exactly once with a cost.

    Args:
        bench: prepares the candidates.
        request: the candidates.
        opened: the settings of the timing and the speed probe's reference.
        marker: where the candidate at risk is noted.
        send: takes replies on the way to the parent.
        probe: read before every sample of one-thread candidates; None: times stay as they are.
    """
    ready: dict[int, Prepared] = {}
    try:
        for place, instance in request.instances.items():
            marker.set(str(place), COMPILING, request.limit_s)
            try:
                takes, gives = request.formats.get(place, (None, None))
                about_to_run = partial(marker.set, str(place), RUNNING, request.limit_s)
                ready[place] = bench.prepare(request.nodes, instance, about_to_run, takes, gives)
            except DeviceFault as fault:
                end_process(fault)
            except (Exception, SystemExit) as error:
                send(TimingReply(place, invalid(fault_reason(error))))
            marker.clear()
        while ready:
            failed = _GroupTiming(bench, request, opened, ready, marker, send, probe).run()
            if failed is None:
                return
            ready.pop(failed).close()
    finally:
        marker.clear()
        for prepared in ready.values():
            prepared.close()


class _CandidateFailed(Exception):
    """A candidate raised while it was timed."""

    def __init__(self, place: int, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.place = place
        self.cause = cause


class _GroupTiming:
    """Times the prepared candidates of one group, and answers for each of them."""

    def __init__(
        self,
        bench: Bench,
        request: TimingRequest,
        opened: OpenRequest,
        ready: dict[int, Prepared],
        marker: RiskMarker,
        send: Callable[[TimingReply], None],
        probe: SpeedProbe | None,
    ) -> None:
        self.bench = bench
        self.request = request
        self.opened = opened
        self.ready = ready
        self.marker = marker
        self.send = send
        # The probe runs on one thread of this processor and says nothing of other threads. And
        # threads that wait for each other scatter by themselves, where a single one only does when
        # it is disturbed: so the faster half of the samples counts for single threads only.
        one_thread = all(i.threads == 1 and not i.architecture for i in request.instances.values())
        self.read = probe.read if probe is not None and one_thread else None
        self.settings = (
            opened.settings if one_thread else replace(opened.settings, unsettled=math.inf)
        )
        self.readings: list[Reading] = []

    def run(self) -> int | None:
        """Time the candidates of the group, and send the cost of each.

        Returns:
            The place of a candidate that raised an exception, which is answered as invalid: the
            others have to be timed again without it. None: all were answered.
        """
        places = list(self.ready)
        collecting = gc.isenabled()
        gc.disable()
        try:
            timings = time_interleaved(
                [self.timed_call(place) for place in places],
                self.settings,
                about_to_run=lambda at: self.about_to_run(places[at]),
                interruptions=lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
                seed=self.request.seed,
            )
            readings = list(self.readings)
            cold = self.cold_times(places)
        except _CandidateFailed as failure:
            self.send(TimingReply(failure.place, invalid(fault_reason(failure.cause))))
            return failure.place
        finally:
            self.marker.clear()
            if collecting:
                gc.enable()
        self.answer(places, timings, cold, readings)
        return None

    def timed_call(self, place: int) -> TimedCall:
        """Return what times calls of a candidate, after a reading of the speed probe.

        Where the candidate raises an exception, the call raises ``_CandidateFailed`` with its
        place.
        """
        instance = self.request.instances[place]
        # A device's time is not this process's: its events are asked, whoever runs here.
        threads = instance.threads if not instance.architecture else 0

        def run(calls: int) -> float:
            if self.read is not None:
                self.readings.append(self.read())
            try:
                return undisturbed(lambda: self.ready[place].time(calls), threads)
            except DeviceFault as fault:
                end_process(fault)
            except Exception as error:
                raise _CandidateFailed(place, error) from error

        return run

    def about_to_run(self, place: int) -> None:
        """Note in the marker which candidate is at risk."""
        self.marker.set(str(place), TIMED, self.request.limit_s)

    def cold_times(self, places: list[int]) -> dict[int, float]:
        """Return the seconds of single calls with cold weights, by place.

        They are measured only where the model's weights exceed the last-level cache.
        """
        if not self.bench.cold:
            return {}
        return {
            place: time_cold(
                self.timed_call(place),
                self.bench.evict,
                self.ready[place].warm_inputs,
                about_to_run=partial(self.about_to_run, place),
            )
            for place in places
        }

    def answer(
        self,
        places: list[int],
        timings: list[Timing],
        cold: dict[int, float],
        readings: list[Reading],
    ) -> None:
        """Send the cost of every candidate, normalised by the speed probe's readings.

        Args:
            places: The places of the candidates.
            timings: Their timings, in the same order.
            cold: Seconds of single calls with cold weights, by place.
            readings: What the speed probe took while they were timed.
        """
        percentile = CALM_PERCENTILE if any(t.calm for t in timings) else USUAL_PERCENTILE
        known = self.opened.probe_reference
        reading_us = reference_us = None
        if readings and known:
            reading_us = geometric_mean_us(typical(readings, percentile))
            reference_us = geometric_mean_us(known)
        for place, timing in zip(places, timings, strict=True):
            cost = cost_of(
                timing,
                threads=self.request.instances[place].threads,
                fingerprint=self.opened.fingerprint,
                measured_at=now_text(),
                max_rel_error=self.ready[place].max_rel_error,
                cold_s=cold.get(place),
                probe=PROBE_NAME if reading_us else "",
                reading_us=reading_us,
                reference_us=reference_us,
            )
            self.send(TimingReply(place, cost))


def end_process(fault: DeviceFault) -> NoReturn:
    """End the child at once, with the marker still on the culprit.

    A device's context is lost for good: whatever ran in this process afterwards would fail for no
    fault of its own.
    """
    sys.stderr.write(f"{fault}\n")
    sys.stderr.flush()
    os._exit(LOST_DEVICE)
