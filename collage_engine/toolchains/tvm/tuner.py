"""Finds the kernels of a function that can be tuned, and searches for a better one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from collage_engine.kernels.choices import Choices, using
from collage_engine.records.toolchain import ToolchainInstance, TuneRecord, TuneTask
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function

_log = logging.getLogger(__name__)


class TvmTuning:
    """Implements ``capabilities.Tunes``; the process that asks the children imports no TVM."""

    def tuning_tasks(self, function: Function) -> list[TuneTask]:
        """Return what can be tuned of a candidate.

        Raises:
            ToolchainError: The candidate cannot be lowered.
        """
        from collage_engine.kernels.scheduler import RULES
        from collage_engine.toolchains.tvm.lowering import lower_function

        try:
            with using(Choices()) as choices:
                lower_function(function)
        except ToolchainError:
            raise
        except Exception as error:
            raise ToolchainError(f"TVM could not lower {function.symbol}: {error}") from error
        # A task for each problem that was asked for while the function was lowered.
        return [
            TuneTask(
                workload=workload,
                description=description,
                schedule=str(description["family"]),
                weight=RULES.problem(description).multiply_adds,
            )
            for workload, description in choices.asked.items()
        ]

    def tune(
        self,
        task: TuneTask,
        instance: ToolchainInstance,
        earlier: TuneRecord | None,
        seconds: float,
        better: Callable[[TuneRecord], None],
    ) -> TuneRecord:
        """Search for at most ``seconds``, from what is known on.

        Args:
            task: What is tuned.
            instance: The toolchain's instance, with its threads and target.
            earlier: What an earlier search found.
            seconds: When to end.
            better: Keeps what was found so far, should this process not live to return. (A choice
                without times is unconfirmed.)
        """
        from collage_engine.kernels.rule import Decision
        from collage_engine.kernels.scheduler import RULES
        from collage_engine.kernels.target import cpu
        from collage_engine.kernels.tuner import WORTH, KernelBench, climb

        begun = time.monotonic()
        before = earlier or TuneRecord(workload=task.workload, toolchain="tvm")
        machine = cpu(instance.threads)
        bench = KernelBench(RULES.problem(task.description), machine)
        default = bench.default
        bench.make(default)
        # However long the first kernels took (TVM loads, plain loops run), half the turn is for
        # trials.
        deadline = max(begun + seconds, time.monotonic() + seconds / 2)
        tried, failed = list(before.tried), list(before.failed)

        def record(choice: Mapping[str, Any], complete: bool = False, **times: float) -> TuneRecord:
            return msgspec.structs.replace(
                before,
                choice=dict(choice),
                tried=tuple(tried),
                failed=tuple(failed),
                complete=complete,
                seconds=before.seconds + time.monotonic() - begun,
                **times,
            )

        def compare(challenger: Decision[Any, Any], best: Decision[Any, Any]) -> float:
            try:
                ratio = bench.compare(challenger, best)
            except ToolchainError as error:
                _log.info("%s is of no use: %s", challenger.name, error)
                failed.append(challenger.name)
                return math.inf
            except Exception:
                # TVM's own errors are of several types. One of ours would look the same to the
                # search, so it is logged with its trace.
                _log.warning("%s failed", challenger.name, exc_info=True)
                failed.append(challenger.name)
                return math.inf
            tried.append(challenger.name)
            ahead = challenger if ratio <= WORTH else best
            bench.forget(ahead)
            # If this process is ended, the next one goes on from here.
            better(record(before.choice if ahead is start else ahead.to_record()))
            return ratio

        start = default
        if before.choice:
            start = RULES.decide(bench.problem, machine, before.choice) or default
        climbed = climb(
            start,
            lambda decision: RULES.neighbours(decision, machine),
            compare,
            stop=lambda: time.monotonic() >= deadline,
            tried=[*before.tried, *before.failed],
        )
        # Many small gains may be noise: only rounds that are taken anew against the default count.
        ratio = bench.confirmed(climbed.best)
        default_us = bench.seconds(default) * 1e6
        if ratio > WORTH:
            return record({}, climbed.complete, default_us=default_us, tuned_us=default_us)
        result = record(
            climbed.best.to_record(),
            climbed.complete,
            default_us=default_us,
            tuned_us=default_us * ratio,
        )
        better(result)
        return result
