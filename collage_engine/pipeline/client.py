"""Talks to the pipeline's child process: one job at a time, events on the way, cancel any time."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collage_engine.machine.scratch import Scratch
from collage_engine.machine.worker import RemoteError, Worker, WorkerCrashed
from collage_engine.placement.artifact import remove_unfinished
from collage_engine.records.errors import Cancelled, CollageError

GRACE_S = 0.8
"""How long a cancelled job may take to end by itself before its process is killed."""


class PipelineClient:
    """Starts the child at the first job and again after it died; the child keeps open models."""

    def __init__(self, name: str) -> None:
        self._scratch = Scratch()
        """Recorded values and built modules, up to gigabytes: gone with the child, even killed."""
        self._worker = Worker(
            "collage_engine.pipeline.child:serve", name=name,
            env={"TMPDIR": str(self._scratch.path)},
        )  # fmt: skip
        self._lock = threading.Lock()
        self._kill = threading.Event()
        self._cancelled = threading.Event()
        self._jobs = 0
        self.busy = False

    def job(
        self, name: str, *, on_event: Callable[[object], None] | None = None, **arguments: Any
    ) -> Any:
        """Run a job of ``pipeline.child`` and return what it returns. Raises its CollageError,
        Cancelled after ``cancel``, or CollageError with the reason when the child died."""
        with self._lock:
            self._kill.clear()
            self._cancelled.clear()
            self._jobs += 1
            self.busy = True
            try:
                return self._worker.call((name, arguments), cancel=self._kill, on_message=on_event)
            except WorkerCrashed as error:
                if self._cancelled.is_set():
                    # The signal came before the child could handle it.
                    raise Cancelled("cancelled; what was measured is kept") from None
                raise CollageError(
                    f"the engine's pipeline process died during {name}: {error}; "
                    "what was measured is kept, start again to go on"
                ) from error
            except RemoteError as error:
                error.args = (f"a defect of Collage Explorer, in its step {name!r}: {error}",)
                raise
            finally:
                self.busy = False
                if not self._worker.alive:
                    self._scratch.empty()
                    if arguments.get("out") is not None:
                        remove_unfinished(Path(arguments["out"]))

    def cancel(self) -> None:
        """Ask the running job to stop; its process is killed when it does not in ``GRACE_S``."""
        pid = self._worker.pid
        if pid is None or not self.busy:
            return
        job = self._jobs
        self._cancelled.set()
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR1)

        def insist() -> None:
            if self.busy and self._jobs == job:
                self._kill.set()

        timer = threading.Timer(GRACE_S, insist)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """Stop the child, whatever it does."""
        self._kill.set()
        self._worker.close()
        self._scratch.close()
