"""What the measuring child does: compile, check the numbers, time. One model per child.

The parent learns who is to blame for a crash, and ends who takes too long, by what is noted before
anything risky (``machine.faults``).
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from collage_engine.machine.cuda_runtime import LOST_DEVICE, DeviceFault
from collage_engine.machine.faults import OWN_RISK
from collage_engine.records.candidate import Candidate, Cost, invalid
from collage_engine.store.store import now_text
from collage_engine.support.errors import fault_reason
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
        """
        if isinstance(request, OpenRequest):
            self.bench = self.open(request)
            gc.collect()
            gc.freeze()  # the model's records need no collecting between timings
            return
        assert self.bench is not None
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
    ready: dict[str, tuple[Candidate, PreparedCandidate]] = {}
    with contextlib.ExitStack() as opened:
        for candidate in request.candidates:
            key = candidate.key
            with OWN_RISK.during(key, COMPILING, request.limit_s):
                try:
                    about_to_run = partial(OWN_RISK.set, key, RUNNING, request.limit_s)
                    prepared = bench.prepare(candidate, about_to_run)
                except DeviceFault as fault:
                    end_process(fault)
                except (Exception, SystemExit) as error:
                    at_risk = OWN_RISK.get()
                    ran = at_risk is not None and at_risk.doing == RUNNING
                    send((key, invalid(fault_reason(error), wrong_numbers=ran)))
                else:
                    ready[key] = candidate, opened.enter_context(contextlib.closing(prepared))
        _time_group(request, ready, send)


def _time_group(
    request: TimingRequest,
    ready: Mapping[str, tuple[Candidate, PreparedCandidate]],
    send: Callable[[TimingReply], None],
) -> None:
    """Time the prepared candidates of a group, by measurement key, and send the cost of each.

    Where a call of one raises, the others are timed anew without it.
    """
    keys = list(ready)
    gc.disable()
    try:
        timings = time_interleaved(
            [_timed_call(*prepared) for prepared in ready.values()],
            about_to_run=lambda at: OWN_RISK.set(keys[at], TIMED, request.limit_s),
        )
    except DeviceFault as fault:
        end_process(fault)
    except Exception as error:
        at_risk = OWN_RISK.get()
        assert at_risk is not None
        send((at_risk.who, invalid(fault_reason(error))))
        others = {key: prepared for key, prepared in ready.items() if key != at_risk.who}
        return _time_group(request, others, send)
    finally:
        OWN_RISK.clear()
        gc.enable()
    for key, timing in zip(keys, timings, strict=True):
        cost = Cost(
            state="measured",
            median_us=timing.median * 1e6,
            low_us=timing.low * 1e6,
            high_us=timing.high * 1e6,
            count=len(timing.samples),
            max_rel_error=ready[key][1].max_rel_error,
            measured_at=now_text(),
        )
        send((key, cost))


def _timed_call(candidate: Candidate, prepared: PreparedCandidate) -> TimedCall:
    """Return what times calls of a candidate."""
    # A device's time is not this process's: its events are asked, whatever runs here.
    threads = candidate.instance.threads if not candidate.instance.architecture else 0
    return lambda calls: undisturbed(lambda: prepared.time(calls), threads)


def end_process(fault: DeviceFault) -> NoReturn:
    """End the child at once, while the culprit is noted as at risk.

    A device's context is lost for good: whatever ran in this process afterwards would fail for no
    fault of its own.
    """
    sys.stderr.write(f"{fault}\n")
    sys.stderr.flush()
    os._exit(LOST_DEVICE)
