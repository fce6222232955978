"""Many requests over a few child processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from collage_engine.machine.worker import Worker
from collage_engine.records.errors import Cancelled, CollageError
from collage_engine.records.flag import Flag


def map_in_children(
    target: str,
    payloads: Sequence[Any],
    *,
    workers: int = 2,
    timeout_s: float | None = None,
    cancel: Flag | None = None,
    env: Mapping[str, str] | None = None,
    memory_limit_bytes: int | None = None,
) -> list[Any]:
    """Run requests in a few children and return, for each, its result or its ``CollageError``.

    A request that crashes or hangs spoils no other; ``Cancelled`` is raised.
    """
    idle: deque[Worker] = deque(
        Worker(target, env=env, memory_limit_bytes=memory_limit_bytes, name=f"worker-{i}")
        for i in range(max(1, min(workers, len(payloads))))
    )
    everyone = tuple(idle)

    def one(payload: Any) -> Any:
        worker = idle.popleft()
        try:
            return worker.call(payload, timeout_s, cancel)
        except Cancelled:
            raise
        except CollageError as error:
            return error
        finally:
            idle.append(worker)

    try:
        with ThreadPoolExecutor(max_workers=len(everyone)) as threads:
            return list(threads.map(one, payloads))
    finally:
        for worker in everyone:
            worker.close()
