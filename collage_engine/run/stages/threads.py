"""The step that finds out whether the model is faster on fewer threads than there are cores."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec

from collage_engine.candidates.catalog import threads_of
from collage_engine.run.task import RunState, RunTask
from collage_engine.support.text import counted
from collage_engine.support.time_limits import STEP_SHARE
from collage_engine.trials.standings import SLOWER
from collage_engine.wording.amounts import time_text

HANDING_US = 3.0
"""Microseconds for handing an operator's work to a second thread, at the most: where two threads
take more than twice as long for each operator, one is not faster and is not tried. Measured: 0.8
where both processors share a cache, and up to 3 is what the kernels' ``HANDING_CYCLES`` allows for.
"""


def choose_threads(state: RunState) -> RunTask:
    """Time the fastest whole model on all, half and one of the threads, in common rounds.

    Nothing is tried where the number was given, nor beside other programs, which take processors
    from several threads and none from one, nor where two threads have enough to do in each operator
    (``HANDING_US``).

    Returns:
        The task with the fewest threads that are clearly faster than all; the task as it was where
        there are none.
    """
    task, control, race = state.task, state.control, state.race
    most, leader = threads_of(task.settings), race.leader
    fewer = [n for n in dict.fromkeys((most // 2, 1)) if 0 < n < most]
    is_given = bool(task.settings.threads) or task.machine_before.busy is not None
    # Whole models are raced again on the number of threads that is found.
    too_long = control.seconds.get("whole-models", 0.0) > STEP_SHARE * race.clock.left_s
    if is_given or too_long or not fewer or leader is None or state.catalog.target.kind != "cpu":
        return task
    all_us, operators = race.standings.time_us(leader), len(task.open_model.model.graph.operators)
    if all_us is None or (most == 2 and all_us > 2 * HANDING_US * operators):
        return task
    alone = leader.contender
    tried = [
        replace(
            alone,
            name=str(threads),
            barred="it is timed for its number of threads only",
            cover=tuple(
                msgspec.structs.replace(
                    part, instance=msgspec.structs.replace(part.instance, threads=threads)
                )
                for part in alone.cover
            ),
        )
        for threads in fewer
    ]
    with control.stage("threads") as report:
        ends_at = time.monotonic() + STEP_SHARE * race.clock.left_s
        found = race.time_without_entering(tried, ends_at=ends_at)
        all_us = race.standings.time_us(leader)  # with the common rounds
        us = {most: all_us, **{int(name): taken for name, taken in found.items()}}
        measured = {threads: taken for threads, taken in us.items() if taken is not None}
        if all_us is None or len(measured) < 2:
            return task
        best = min(measured, key=lambda threads: measured[threads])
        report.detail = ", ".join(
            f"{time_text(taken)} on {counted(threads, 'thread')}"
            for threads, taken in measured.items()
        )
        if measured[best] * SLOWER > all_us:
            best = most
    settings = msgspec.structs.replace(task.settings, threads=best)
    return replace(task, settings=settings, threads_us=measured)
