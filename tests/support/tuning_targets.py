"""Scripted tuning children: they answer at once, crash or hang, without TVM."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from collage_engine.records.toolchain import TuneRecord, TuneTask
from collage_engine.timing.tuning_job import ListTasks, Tune

SAVES = 0.2


class Scripted:
    """Every candidate has one kernel per operator; tuning saves a fifth at once."""

    def __call__(self, request: Any, send: Callable[[Any], None]) -> Any:
        if isinstance(request, ListTasks):
            # Even and odd operators are equal work each.
            return [
                TuneTask(workload=f"kernel {n % 2}", description={"n": n})
                for n in request.candidate.nodes
            ]
        assert isinstance(request, Tune)
        return self.tune(request, send)

    def tune(self, request: Tune, send: Callable[[Any], None]) -> TuneRecord:
        known = request.known or TuneRecord(workload=request.task.workload, toolchain="tvm")
        return msgspec.structs.replace(
            known,
            choice={"block": 2},
            default_us=100.0,
            tuned_us=100.0 * (1 - SAVES),
            tried=(*known.tried, "wide"),
            complete=True,
        )


class Crashing(Scripted):
    """One of the two workloads ends the process, after something better was found."""

    def tune(self, request: Tune, send: Callable[[Any], None]) -> TuneRecord:
        found = super().tune(request, send)
        if request.task.workload == "kernel 1":
            send(msgspec.structs.replace(found, complete=False))
            time.sleep(0.2)  # the message is on its way
            os.abort()
        return found


class AlwaysCrashing(Scripted):
    def tune(self, request: Tune, send: Callable[[Any], None]) -> TuneRecord:
        os.abort()


class Hanging(Scripted):
    def tune(self, request: Tune, send: Callable[[Any], None]) -> TuneRecord:
        if request.task.workload == "kernel 1":
            time.sleep(600)
        return super().tune(request, send)
