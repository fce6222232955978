"""Scripted tuning children: they answer at once, crash or hang, without TVM."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from collage_engine.records.tuning import TuneRecord, TuneTask
from collage_engine.tuning.job import ListTasks, Ready, Trying, Tune

SAVES = 0.2


class Scripted:
    """Every candidate has one kernel per operator; tuning saves a fifth at once."""

    def __call__(self, request: Any, send: Callable[[Any], None]) -> Any:
        if isinstance(request, Ready):
            return None
        if isinstance(request, ListTasks):
            # Even and odd operators are equal work each.
            return [
                TuneTask(workload=f"kernel {n % 2}", description={"n": n}) for n in request.nodes
            ]
        assert isinstance(request, Tune)
        return self.tune(request, send)

    def tune(self, request: Tune, send: Callable[[Any], None]) -> TuneRecord:
        known = request.known or TuneRecord(workload=request.task.workload, toolchain="tvm")
        send(Trying("wide"))
        return msgspec.structs.replace(
            known,
            choice={"block": 2},
            default_us=100.0,
            tuned_us=100.0 * (1 - SAVES),
            tried=(*known.tried, "wide"),
            complete=True,
        )


class Crashing(Scripted):
    """One of the two workloads ends the process whenever a certain variant is tried."""

    def tune(self, request: Tune, send: Callable[[Any], None]) -> TuneRecord:
        known = request.known
        if request.task.workload == "kernel 1" and not (known and "bad" in known.failed):
            send(Trying("bad"))
            os.abort()
        return super().tune(request, send)


class AlwaysCrashing(Scripted):
    def tune(self, request: Tune, send: Callable[[Any], None]) -> TuneRecord:
        os.abort()


class Hanging(Scripted):
    def tune(self, request: Tune, send: Callable[[Any], None]) -> TuneRecord:
        if request.task.workload == "kernel 1":
            send(Trying("slow"))
            time.sleep(600)
        return super().tune(request, send)
