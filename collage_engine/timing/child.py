"""The child process that measures: what it is started with, and having one group run in it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from collage_engine.lowering.virtual_machine import virtual_machine_environment
from collage_engine.machine.processes import private_bytes
from collage_engine.machine.time_limits import with_weights
from collage_engine.machine.worker import Worker, WorkerCrashed, WorkerTimeout
from collage_engine.records.errors import MeasureError
from collage_engine.records.flag import Flag
from collage_engine.store.store import Store, StoreReader
from collage_engine.timing.messages import Marker, OpenRequest, Phase, TimingReply, TimingRequest
from collage_engine.timing.speed_probe import NAME as PROBE_CONSTANT
from collage_engine.timing.speed_probe import Reading

_LOG = logging.getLogger(__name__)

OPEN_LIMIT_S = 600.0
"""Seconds for importing a model in the child, besides those for its weights (``with_weights``);
chosen, some ten times the largest seen."""
OPEN_LEAST_S = 120.0
"""Seconds for the same where less than that is left of the time for measuring; chosen."""
OPEN_ATTEMPTS = 3
"""Children that are started for a model before it counts as one that cannot be opened; chosen: the
first may have been killed by the system or by a person."""
BLOATED_SHARE = 0.5
"""Share of its own limit from which on a child is replaced between groups; chosen."""


def measuring_environment(
    toolchains: Iterable[str], threads: int, spin: bool = False
) -> dict[str, str]:
    """Return the environment in which toolchains share a process fairly: same threads, no spinning.

    Libraries read these variables when they load. Thread pools of several runtimes that spin take
    the cores away from each other.

    Args:
        toolchains: names of the toolchains that the child loads.
        threads: threads of each of their pools.
        spin: let idle threads spin, as a library does by default.
    """
    from collage_engine.toolchains.registry import about

    # OpenMP's variables hold for whatever else has a pool in the process, numpy's BLAS among it.
    env = virtual_machine_environment(threads, spin) | {"OMP_NUM_THREADS": str(threads)}
    if not spin:
        env |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
    for name in toolchains:
        env |= about(name).variables(threads, spin)
    return env


class MeasuringChild:
    """One child at a time, started and given the model when it is asked. Close it to end it.

    Attributes:
        candidate_limit_s: seconds without a sign of life after which the child is ended.
        fresh: whether no candidate was compiled in this child yet.
    """

    def __init__(
        self,
        opening: OpenRequest,
        *,
        store: Store | None,
        env: Mapping[str, str] | None,
        candidate_limit_s: float,
        weights_bytes: int,
        memory_limit_bytes: int | None,
        job: str,
    ) -> None:
        """Prepare; no process is started yet.

        Args:
            opening: the model, without the marker and the speed probe's reference, which are the
                child's own.
            store: has the probe's reference of this machine, or gets it.
            env: variables of the child's environment.
            candidate_limit_s: seconds without a sign of life after which the child is ended, for a
                model without large weights.
            weights_bytes: size of the model's weights, which lengthens every limit.
            memory_limit_bytes: of the child; None: a share of what the machine has.
            job: the worker's target.
        """
        self._store = store
        self._weights_bytes = weights_bytes
        self.candidate_limit_s = with_weights(candidate_limit_s, weights_bytes)
        self._folder = tempfile.TemporaryDirectory(prefix="collage-measure-")
        marker_path = Path(self._folder.name) / "marker"
        self._marker = Marker(marker_path, create=True)
        self._open = replace(
            opening, marker_path=str(marker_path), probe_reference=_reference_of(store)
        )
        self._worker = Worker(
            job, env=env, memory_limit_bytes=memory_limit_bytes, name="collage-measure"
        )
        self._opened = 0
        """Generation of the child that has the model open."""
        self.fresh = True

    @property
    def probe_reference(self) -> Reading | None:
        """Return the speed probe's reference.

        None before the first child, where the store has none.
        """
        return self._open.probe_reference

    @property
    def alive(self) -> bool:
        """Tell whether a child is there."""
        return self._worker.alive

    def ask(
        self,
        request: TimingRequest,
        timeout_s: float | None,
        cancel: Flag | None,
        on_answer: Callable[[TimingReply], None],
    ) -> None:
        """Have one group run in the child, which is started and given the model if need be.

        Args:
            request: The group.
            timeout_s: Seconds that the group may take; None: any number.
            cancel: Ends the child when it is set.
            on_answer: Takes each reply of the child, on its way.

        Raises:
            MeasureError: The model cannot be opened.
            WorkerCrashed: The child crashed; ``blame`` says who was at risk.
            WorkerTimeout: The child took too long, or gave no sign of life; see ``blame``.
            Cancelled: The user stopped it.
        """
        if not self._worker.alive or self._opened != self._worker.generation:
            self._marker.clear()
            limit_s = min(OPEN_LIMIT_S, max(OPEN_LEAST_S, timeout_s or OPEN_LIMIT_S))
            reference = self._open_model(with_weights(limit_s, self._weights_bytes), cancel)
            self._opened = self._worker.generation
            self.fresh = True
            if self._open.probe_reference is None and reference is not None:
                self._open = replace(self._open, probe_reference=reference)
                if self._store is not None:
                    self._store.put_constant(PROBE_CONSTANT, reference)
        self._worker.call(
            request,
            timeout_s=timeout_s,
            cancel=cancel,
            on_message=on_answer,
            silence_s=self.candidate_limit_s,
        )

    def _open_model(self, limit_s: float, cancel: Flag | None) -> Reading | None:
        """Have a child open the model, another one where it dies, and return the probe's reference.

        Args:
            limit_s: Seconds that opening it may take.
            cancel: Ends the child when it is set.

        Raises:
            MeasureError: ``OPEN_ATTEMPTS`` children died, or one took too long.
        """
        for attempt in range(1, OPEN_ATTEMPTS + 1):
            try:
                found: Reading | None = self._worker.call(self._open, limit_s, cancel)
                return found
            except (WorkerCrashed, WorkerTimeout) as error:
                _LOG.warning("attempt %d to open the model for measuring: %s", attempt, error)
                if attempt == OPEN_ATTEMPTS or isinstance(error, WorkerTimeout):
                    raise MeasureError(
                        f"{self._open.model_path} could not be opened for measuring: {error}"
                    ) from error
        raise AssertionError("the last attempt returns or raises")

    def blame(self, waiting: Sequence[int]) -> tuple[int | None, Phase]:
        """Return which candidate was at risk when the child ended, and what it was doing.

        Args:
            waiting: Places of the candidates without an answer.

        Returns:
            The place, or None where none of these was at risk; and the phase of its work.
        """
        found = self._marker.blame(waiting)
        self._marker.clear()
        return found

    def renew(self) -> None:
        """End the child; the next call starts another."""
        self._worker.close()

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


def _reference_of(store: StoreReader | None) -> Reading | None:
    """Return the speed probe's reference that a store holds; None where it holds none."""
    known = store.constant(PROBE_CONSTANT) if store is not None else None
    return (known[0], known[1]) if known else None
