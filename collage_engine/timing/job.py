"""What the measuring child does: compile, check the numbers, time. One model per child.

The parent learns who is to blame for a crash, and ends who takes too long, by what is noted before
anything risky (``machine.faults``).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from collage_engine.machine.cuda_runtime import LOST_DEVICE, DeviceFault
from collage_engine.machine.faults import OWN_RISK
from collage_engine.records.candidate import Cost, invalid
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.store import now_text
from collage_engine.support.errors import MeasureError, fault_reason
from collage_engine.timing.child import OpenRequest, TimingReply, TimingRequest, undisturbed
from collage_engine.timing.protocol import TimedCall, time_interleaved

if TYPE_CHECKING:
    from collage_engine.timing.bench import ModelBench, PreparedCandidate

JOB = "collage_engine.timing.job:MeasureJob"

COMPILING, RUNNING, TIMED = "compiling", "running by itself", "being timed"
"""What a candidate that is at risk is doing."""


class MeasureJob:
    """The target of the measuring child's worker, which keeps the open model between requests."""

    def __init__(self) -> None:
        self.bench: ModelBench | None = None

    def __call__(self, request: Any, send: Callable[[TimingReply], None]) -> None:
        """Open a model, or time one group of candidates of the open model.

        Args:
            request: An ``OpenRequest``, or a ``TimingRequest``.
            send: Takes replies on their way to the parent.

        Raises:
            MeasureError: No model is open.
        """
        if isinstance(request, OpenRequest):
            self.bench = self.open(request)
            gc.collect()
            gc.freeze()  # the model's records need no collecting between timings
            return
        if self.bench is None:
            raise MeasureError("no model is open in the measuring process")
        assert isinstance(request, TimingRequest)
        run_group(self.bench, request, send)

    def open(self, request: OpenRequest) -> ModelBench:
        """Return the bench that prepares candidates of the requested model."""
        from collage_engine.timing.bench import ModelBench  # imports TVM

        return ModelBench(request)


def run_group(
    bench: ModelBench,
    request: TimingRequest,
    send: Callable[[TimingReply], None],
) -> None:
    """Prepare every candidate, then time those whose numbers were right in interleaved rounds.

    Every candidate is answered exactly once with a cost.

    Args:
        bench: prepares the candidates.
        request: the candidates.
        send: takes replies on the way to the parent.
    """
    if request.ahead:
        bench.compile_ahead(request.ahead, request.limit_s)
    ready: dict[int, PreparedCandidate] = {}
    compiled: set[int] = set()
    try:
        for number, instance in request.instances.items():

            def about_to_run(place: int = number) -> None:
                compiled.add(place)
                OWN_RISK.set(str(place), RUNNING, request.limit_s)

            try:
                takes, gives = request.formats.get(number, (None, None))
                with OWN_RISK.during(str(number), COMPILING, request.limit_s):
                    ready[number] = bench.prepare(
                        request.nodes, instance, about_to_run, takes, gives
                    )
            except DeviceFault as fault:
                end_process(fault)
            except (Exception, SystemExit) as error:
                cost = invalid(fault_reason(error), wrong_numbers=number in compiled)
                send(TimingReply(number, cost))
        while ready:
            failed = _time_group(request, ready, send)
            if failed is None:
                return
            ready.pop(failed).close()
    finally:
        for prepared in ready.values():
            prepared.close()


class _CandidateFailed(Exception):
    """A candidate raised while it was timed."""

    def __init__(self, number: int, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.place = number
        self.cause = cause


def _time_group(
    request: TimingRequest,
    ready: dict[int, PreparedCandidate],
    send: Callable[[TimingReply], None],
) -> int | None:
    """Time the prepared candidates of a group, and send the cost of each.

    Returns:
        The place of a candidate that raised an exception, which is answered as invalid: the others
        have to be timed again without it. None: all were answered.
    """
    places = list(ready)
    gc.disable()
    try:
        timings = time_interleaved(
            [_timed_call(number, request.instances[number], ready[number]) for number in places],
            about_to_run=lambda at: OWN_RISK.set(str(places[at]), TIMED, request.limit_s),
        )
    except _CandidateFailed as failure:
        send(TimingReply(failure.place, invalid(fault_reason(failure.cause))))
        return failure.place
    finally:
        OWN_RISK.clear()
        gc.enable()
    for number, timing in zip(places, timings, strict=True):
        cost = Cost(
            state="measured",
            median_us=timing.median * 1e6,
            low_us=timing.low * 1e6,
            high_us=timing.high * 1e6,
            count=len(timing.samples),
            max_rel_error=ready[number].max_rel_error,
            measured_at=now_text(),
        )
        send(TimingReply(number, cost))
    return None


def _timed_call(number: int, instance: ToolchainInstance, prepared: PreparedCandidate) -> TimedCall:
    """Return what times calls of a candidate; it raises ``_CandidateFailed`` where that raises."""
    # A device's time is not this process's: its events are asked, whatever runs here.
    threads = instance.threads if not instance.architecture else 0

    def run(calls: int) -> float:
        try:
            return undisturbed(lambda: prepared.time(calls), threads)
        except DeviceFault as fault:
            end_process(fault)
        except Exception as error:
            raise _CandidateFailed(number, error) from error

    return run


def end_process(fault: DeviceFault) -> NoReturn:
    """End the child at once, while the culprit is noted as at risk.

    A device's context is lost for good: whatever ran in this process afterwards would fail for no
    fault of its own.
    """
    sys.stderr.write(f"{fault}\n")
    sys.stderr.flush()
    os._exit(LOST_DEVICE)
