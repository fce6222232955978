"""The child process that measures: what it is started with, and having one group run in it."""

from __future__ import annotations

import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from collage_engine.lowering.virtual_machine import virtual_machine_environment
from collage_engine.machine.processes import private_bytes
from collage_engine.machine.risk_marker import AtRisk, RiskMarker
from collage_engine.machine.worker import Worker, WorkerCrashed, WorkerTimeout
from collage_engine.records.errors import MeasureError
from collage_engine.records.faults import FAULTS
from collage_engine.records.flag import Flag
from collage_engine.records.time_limits import WORK_S, with_weights
from collage_engine.records.toolchain import SHORT_SPIN_TURNS
from collage_engine.timing.messages import OpenRequest, TimingReply, TimingRequest

_LOG = logging.getLogger(__name__)

BLOATED_SHARE = 0.5
"""Share of its own limit from which on a child is replaced between groups; chosen."""


def measuring_environment(toolchains: Iterable[str], threads: int) -> dict[str, str]:
    """Return the environment in which toolchains share a process fairly, as mixes are deployed.

    Libraries read these variables when they load. Thread pools of several runtimes that spin for
    long take the cores away from each other.

    Args:
        toolchains: names of the toolchains that the child loads.
        threads: threads of each of their pools.
    """
    from collage_engine.toolchains.registry import about

    # OpenMP's variables hold for whatever else has a pool in the process, numpy's BLAS among it.
    env = virtual_machine_environment(threads, spin=False) | {"OMP_NUM_THREADS": str(threads)}
    env |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": SHORT_SPIN_TURNS}
    for name in toolchains:
        env |= about(name).variables(threads, spin=False)
    return env


class MeasuringChild:
    """One child at a time, started and given the model when it is asked. Close it to end it.

    Attributes:
        candidate_limit_s: seconds that a candidate may take to be compiled, and to run.
    """

    def __init__(
        self,
        opening: OpenRequest,
        *,
        env: Mapping[str, str] | None,
        candidate_limit_s: float,
        weights_bytes: int,
        memory_limit_bytes: int | None,
        job: str,
    ) -> None:
        """Prepare; no process is started yet.

        Args:
            opening: the model, without the marker, which is the child's own.
            env: variables of the child's environment.
            candidate_limit_s: seconds that a candidate may take to be compiled, and to run, of a
                model without large weights.
            weights_bytes: size of the model's weights, which lengthens every limit.
            memory_limit_bytes: of the child; None: a share of what the machine has.
            job: the worker's target.
        """
        self._weights_bytes = weights_bytes
        self.candidate_limit_s = with_weights(candidate_limit_s, weights_bytes)
        self._folder = tempfile.TemporaryDirectory(prefix="collage-measure-")
        marker_path = Path(self._folder.name) / "marker"
        self._marker = RiskMarker(marker_path, create=True)
        self._open = replace(opening, marker_path=str(marker_path))
        self._worker = Worker(
            job,
            env=env,
            memory_limit_bytes=memory_limit_bytes,
            name="collage-measure",
            marker=self._marker,
        )
        self._opened = 0
        """Generation of the child that has the model open."""

    @property
    def alive(self) -> bool:
        """Tell whether a child is there."""
        return self._worker.alive

    def has_open(self, timeout_s: float | None, cancel: Flag | None) -> bool:
        """Tell whether the child has the model open; it is started and given the model if need be.

        Args:
            timeout_s: Seconds that this may take, whatever the number of attempts; None: as many as
                one attempt may.
            cancel: Ends the child when it is set.

        Returns:
            False where the ``timeout_s`` were over first; there is no child then.

        Raises:
            MeasureError: ``FAULTS`` children died, or one took longer than any may.
            Cancelled: The user stopped it.
        """
        if self._worker.alive and self._opened == self._worker.generation:
            return True
        most_s = with_weights(WORK_S, self._weights_bytes)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for attempt in range(1, FAULTS + 1):
            left_s = math.inf if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return False
            try:
                self._worker.call(self._open, min(most_s, left_s), cancel)
                break
            except (WorkerCrashed, WorkerTimeout) as error:
                _LOG.warning("attempt %d to open the model for measuring: %s", attempt, error)
                timed_out = isinstance(error, WorkerTimeout)
                if timed_out and left_s < most_s:
                    return False
                if timed_out or attempt == FAULTS:
                    raise MeasureError(
                        f"{self._open.model_path} could not be opened for measuring: {error}"
                    ) from error
        self._opened = self._worker.generation
        return True

    def ask(
        self,
        request: TimingRequest,
        timeout_s: float | None,
        cancel: Flag | None,
        on_answer: Callable[[TimingReply], None],
    ) -> None:
        """Have one group run in the child, which has the model open (``has_open``).

        Args:
            request: The group.
            timeout_s: Seconds that the group may take; None: any number.
            cancel: Ends the child when it is set.
            on_answer: Takes each reply of the child, on its way.

        Raises:
            WorkerCrashed: The child crashed; ``at_risk`` says what it did.
            WorkerTimeout: The group, or a candidate, took too long; see ``at_risk``.
            Cancelled: The user stopped it.
        """
        self._worker.call(
            request,
            timeout_s=timeout_s,
            cancel=cancel,
            on_message=on_answer,
        )

    def at_risk(self) -> AtRisk | None:
        """Return which candidate, by its place, was at risk when the child ended; None: none."""
        return self._marker.get()

    def renew_if_bloated(self) -> None:
        """End a child that holds half of the memory it may: libraries give little back."""
        pid = self._worker.pid
        if pid is not None and private_bytes(pid) > self._worker.memory_limit_bytes * BLOATED_SHARE:
            self._worker.close()

    def close(self) -> None:
        """End the child and remove its marker."""
        self._worker.close()
        self._marker.close()
        self._folder.cleanup()
