"""The two functions that a farm's tasks name: everything else goes through the table of members.

This module is light, because the scheduler imports it too. Nothing is ever sent by value.
"""

from __future__ import annotations

from typing import Any

_EXECUTING = "executing"
"""State of a task that Dask's worker is running."""


def call(name: str, lease: str, topic: str, message: bytes, chunk: bytes = b"") -> bytes:
    """Run a member's function as a task; the answer is an ``Envelope`` in bytes."""
    from distributed import get_worker

    from collage_engine.farm.member import member

    worker = get_worker()
    key = worker.get_current_task()

    def say(news: bytes) -> None:
        worker.log_event(topic, news)

    return member().call(name, lease, message, chunk, say, lambda: is_wanted(worker, key))


def beside(name: str, message: bytes) -> bytes:
    """Run a member's function beside its task; the answer is an ``Envelope`` in bytes."""
    from collage_engine.farm.member import member

    return member().beside(name, message)


def is_wanted(worker: Any, key: Any) -> bool:
    """Tells whether somebody still waits for a task: it is not cancelled, its client not gone.

    It looks into the state machine of Dask's worker, which is no promised interface; a test
    (``tests/engine/test_farm_cluster.py``) says when that has changed.
    """
    state = worker.state.tasks.get(key)
    running = state is not None and state.state == _EXECUTING
    return running and worker.status.name in ("running", "paused")
