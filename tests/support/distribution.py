"""Distributes test files to worker processes: what `python -m pytest` does with pytest-xdist.

A worker gets whole files, so fixtures of a module are made once. The files that compare times are
one unit of work: they never run beside each other. When a worker dies, the test that it ran has
failed, the remaining tests of its files run elsewhere, and the run goes on to its end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

MOST_WORKERS = 4
"""Workers at most. Chosen: each of them may load every toolchain and hold measuring children of its
own, some 2 GB."""

COMPARING = frozenset(f"tests/e2e/test_{subject}.py" for subject in ("place", "throughput"))
"""Files that assert which of several placements is the faster one: they stay with one worker."""

APART = "tests/gpu/"
"""Folder whose tests are given out one by one: each compiles for a device and shares no fixture."""


def count_of_workers(config: pytest.Config) -> int:
    """Say how many workers a command gets.

    Returns:
        0 where the command names files or tests, which then run in pytest's own process, and
        otherwise one worker for each core, and one more: tests wait for children for a fifth of
        their time.
    """
    folders = all(Path(argument).is_dir() for argument in config.args)
    return min(len(os.sched_getaffinity(0)) + 1, MOST_WORKERS) if folders else 0


class WholeFiles(LoadScopeScheduling):
    """Hands out whole files in the order of collection, and outlives workers that crash.

    xdist's own scheduler gives the test that crashed a worker to the next one too, and it gives out
    files that are done already; a worker with nothing to run then waits for ever.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if file.startswith(APART):
            return nodeid
        return "files that compare times" if file in COMPARING else file

    def _reschedule(self, node: WorkerController) -> None:
        if node in self.registered_collections:  # else it still collects, and is asked again then
            super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a worker that ended out of the schedule.

        Returns:
            The test that it ran, which counts as done, or None where nothing was left to run.
        """
        units = self.assigned_work.pop(node)
        crashed = next((test for unit in units.values() for test in unit if not unit[test]), None)
        if crashed is None:
            return None
        units[self._split_scope(crashed)][crashed] = True
        left = {scope: unit for scope, unit in units.items() if not all(unit.values())}
        self.workqueue.update(left)
        for other in self.nodes:
            self._reschedule(other)
        return crashed
