"""Searches one workload after another for better kernels in the child, which may crash or hang."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from collage_engine.control.run_control import RunControl
from collage_engine.machine.worker import Worker, WorkerCrashed, WorkerTimeout
from collage_engine.records.errors import CollageError
from collage_engine.records.faults import FAULTS
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.tuning import TuneRecord, TuneTask
from collage_engine.store.tuning_records import TuningRecords
from collage_engine.tuning.job import Ready, Trying, Tune
from collage_engine.tuning.kernel_device import START_S

SILENCE_S = 120.0
"""Seconds that one variant may take, and how far a search may go beyond its time while it is at
one (on a device a batch of them is compiled together); chosen."""


class WorkloadSearches:
    """Searches workloads one after another in the child, and keeps what is known of them."""

    def __init__(
        self, worker: Worker, records: TuningRecords, toolchain: str, control: RunControl
    ) -> None:
        self.known: dict[str, TuneRecord] = {}
        self.done: set[str] = set()
        """Workloads that were searched."""
        self.tried = 0
        """Variants compared."""
        self._worker = worker
        self._records = records
        self._toolchain = toolchain
        self._control = control
        self._crashes: dict[str, int] = {}

    def take(self, task: TuneTask, instance: ToolchainInstance, seconds: float) -> None:
        """Search for a better kernel of a workload for a while, and keep what is found.

        A search that ends the child, or is not done in time, keeps what it has found until then.

        Args:
            task: The workload.
            instance: The toolchain instance that it belongs to.
            seconds: How long the search may take.

        Raises:
            Cancelled: The user stopped the run.
        """
        known = self.known.get(task.workload)
        before = _compared(known)
        since = time.monotonic()
        self.done.add(task.workload)
        trying = ""

        def heard(message: Any) -> None:
            nonlocal trying, since
            if isinstance(message, Trying):
                trying, since = message.name, time.monotonic()
            elif isinstance(message, TuneRecord):
                self._keep(message)

        try:
            if not self._worker.alive:
                self._worker.call(Ready(), timeout_s=START_S, cancel=self._control.cancelled)
            since = time.monotonic()
            self._keep(
                self._worker.call(
                    Tune(task, instance, known, seconds),
                    timeout_s=seconds + SILENCE_S,
                    cancel=self._control.cancelled,
                    on_message=heard,
                    silence_s=SILENCE_S,
                )
            )
        except (WorkerCrashed, WorkerTimeout) as error:
            # Ended because the turn was over, a variant is to blame only if it had long enough.
            enough = time.monotonic() - since > 0.9 * SILENCE_S
            if isinstance(error, WorkerCrashed) or enough:
                self._blame(task, trying, error)
        except CollageError as error:
            self._control.check()
            self._keep(msgspec.structs.replace(self._of(task), complete=True, reason=str(error)))
        self.tried += max(0, _compared(self.known.get(task.workload)) - before)

    def _keep(self, record: TuneRecord) -> None:
        """Keep what is known of a workload, in the store too."""
        self.known[record.workload] = record
        self._records.put(record)

    def _blame(self, task: TuneTask, trying: str, error: Exception) -> None:
        """Note that a variant ended the child, so that it is not tried again.

        After ``FAULTS`` of them the workload is not searched any further.
        """
        count = self._crashes[task.workload] = self._crashes.get(task.workload, 0) + 1
        known = self._of(task)
        failed = (*known.failed, trying) if trying else known.failed
        over = count >= FAULTS
        self._keep(
            msgspec.structs.replace(
                known, failed=failed, complete=over, reason=str(error) if over else None
            )
        )

    def _of(self, task: TuneTask) -> TuneRecord:
        """Return what is known of a workload; an empty record where nothing is."""
        blank = TuneRecord(workload=task.workload, toolchain=self._toolchain)
        return self.known.get(task.workload, blank)


def _compared(record: TuneRecord | None) -> int:
    """Return how many variants of a workload were compared."""
    return len(record.tried) + len(record.failed) if record else 0
