"""Places models on the machines of a farm: submits a task for each, and keeps what comes back.

Dask keeps the queue: a task waits for a machine, goes to another one when its machine is lost, and
shows in Dask's dashboard. This process alone writes the store, sessions and artifacts, each as soon
as its task has ended, so that what has ended is kept whatever happens then.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import distributed

from collage_engine.farm import task
from collage_engine.farm.processes import LOST_MACHINES, MACHINE, SETTINGS, security
from collage_engine.farm.task import FarmTask, PlaceAnswer
from collage_engine.model.onnx_file import files_beside
from collage_engine.store.store import Store
from collage_engine.support.errors import FarmError, UsageError

_LOG = logging.getLogger(__name__)

CONNECT_S = 15
"""Seconds for reaching a scheduler: a TLS handshake takes milliseconds, and a machine that is gone
answers nothing."""


def model_contents(path: Path) -> dict[str, bytes]:
    """Return the contents of a model's files by path relative to it: the ONNX file and its weights.

    Raises:
        CollageError: A file cannot be read, or is no ONNX model.
    """
    names = [path.name, *files_beside(path)]
    # A path that leads out of the folder is refused by who opens the model.
    inside = [n for n in names if not Path(n).is_absolute() and ".." not in Path(n).parts]
    try:
        return {name: (path.parent / name).read_bytes() for name in inside}
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from error


class Farm:
    """A connection to the scheduler of a farm.

    Attributes:
        kinds: The kinds of machines that are in it now, as resources are called.
    """

    def __init__(self, address: str, certificate: Path) -> None:
        """Connect.

        Raises:
            FarmError: The scheduler cannot be reached, or refuses the certificate.
        """
        names = {name.lower().replace("__", "."): value for name, value in SETTINGS.items()}
        dask.config.set(names)
        dask_client: Any = distributed.Client  # it has no types
        try:
            self._client = dask_client(address, security=security(certificate), timeout=CONNECT_S)
        except (OSError, ValueError, TypeError) as error:
            raise FarmError(
                f"the farm {address} cannot be reached with the certificate {certificate}: {error}"
            ) from error

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._client.close(timeout=CONNECT_S)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of machines that are in the farm now."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        kinds = {kind for worker in workers for kind in worker["resources"]}
        return tuple(sorted(kinds - {MACHINE}))

    def place(
        self,
        tasks: Sequence[FarmTask],
        *,
        kind: str = "",
        on_event: Callable[[str], None] = lambda line: None,
    ) -> Iterator[tuple[FarmTask, PlaceAnswer]]:
        """Place models; yield each with its answer when it has ended, whichever ends first.

        Closing the iterator cancels what has not ended.

        Args:
            tasks: The models.
            kind: The kind of machine that all of them run on; empty: any.
            on_event: Takes lines on what the machines are doing, from another thread.

        Raises:
            UsageError: No machine of the farm is of that kind, or a model cannot be read.
            FarmError: The scheduler was lost; what was yielded before is complete.
        """
        if kind and kind not in self.kinds:
            there = ", ".join(self.kinds) or "none at all"
            raise UsageError(f"no machine of the farm is of the kind {kind!r}; there are {there}")
        topic = f"collage-{uuid.uuid4().hex[:12]}"
        resources = {MACHINE: 1} | ({kind: 1} if kind else {})
        self._client.subscribe_topic(topic, lambda event: on_event(event[1]))
        pending: dict[Any, FarmTask] = {}
        try:
            for each in tasks:
                files = model_contents(each.model)
                key = f"{each.name}-{uuid.uuid4().hex[:8]}"
                future = self._client.submit(
                    task.place, each, files, topic, key=key, resources=resources
                )
                pending[future] = each
            ended: Any = distributed.as_completed  # it has no types
            for future in ended(list(pending)):
                yield pending.pop(future), self._answer(future)
        finally:
            with contextlib.suppress(Exception):
                self._client.cancel(list(pending), force=True)
                self._client.unsubscribe_topic(topic)

    def _answer(self, future: Any) -> PlaceAnswer:
        """Return the answer of a future that has ended.

        Raises:
            FarmError: The scheduler was lost.
        """
        try:
            answer: PlaceAnswer = future.result()
            return answer
        except distributed.KilledWorker:
            return PlaceAnswer(
                machine="", failure=f"{LOST_MACHINES + 1} machines were lost while they placed it"
            )
        except distributed.CancelledError as error:
            raise FarmError(
                "the farm's scheduler was lost; what had ended is kept, and running the command "
                "again places the rest"
            ) from error
        except Exception as error:  # whatever the worker's Python raised while it began
            _LOG.warning("a task of the farm failed", exc_info=True)
            return PlaceAnswer(machine="", failure=f"{type(error).__name__}: {error}")


def keep(answer: PlaceAnswer, store: Store, session: Path | None, out: Path | None) -> None:
    """Write what a task brought, and note in its run where that was and is.

    Args:
        answer: The answer.
        store: Takes the measurements.
        session: The session's file; None: it is not kept.
        out: The artifact's folder, which must be new, empty or an artifact; None: it is not kept.

    Raises:
        CollageError: Something cannot be written, or the measurements cannot be taken.
    """
    from collage_engine.artifact.artifact import check_target_folder
    from collage_engine.machine.folders import replace_atomically
    from collage_engine.support.files import write_atomically

    if answer.measurements:
        with tempfile.NamedTemporaryFile(prefix="collage-farm-") as file:
            file.write(answer.measurements)
            file.flush()
            store.import_(file.name)
    try:
        if answer.session and session is not None:
            write_atomically(session, answer.session)
        if answer.artifact and out is not None:
            check_target_folder(out)
            replace_atomically(out, lambda folder: task.write_files(folder, answer.artifact))
    except OSError as error:
        raise FarmError(f"{error.filename or out} cannot be written: {error.strerror}") from error
    if answer.run is not None:
        answer.run.measured_on = answer.machine
        answer.run.artifact = str(out) if answer.artifact else None
