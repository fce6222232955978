"""Walks process trees: who descends from whom, what they occupy, and how to end them all.

Plain ``/proc`` readers, because the warden of a worker uses them in a bare interpreter.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def descendants(pid: int) -> list[int]:
    """Return every process below ``pid``, in no order; empty where there is no ``/proc``."""
    table = None
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        table = _children_table()
    found: list[int] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        below = _children_by_thread(parent) if table is None else table.get(parent, [])
        found += below
        todo += below
    return found


def _children_by_thread(pid: int) -> list[int]:
    """Returns the children of a process by the kernel's own lists.

    They are a few small files, cheap enough to read beside a timing.
    """
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


def _children_table() -> dict[int, list[int]]:
    """Returns the children of every process, by one look at all, for kernels without such lists."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command in parentheses may hold spaces and parentheses itself.
            after = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(after[1]), []).append(int(entry.name))
    return children


def private_bytes(pid: int) -> int:
    """Returns the resident bytes of one process without mapped files; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def kill(pid: int) -> None:
    """End a process at once; one that is gone, or not ours, is left alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_descendants(pid: int) -> None:
    """End everything below ``pid``; looks again, since a dying tree may still fork."""
    for _ in range(5):
        below = descendants(pid)
        if not below:
            return
        for each in below:
            kill(each)
        for each in below:
            # Direct children are ours to reap; others are reaped by init or a subreaper.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(each, 0)


def signal_name(number: int) -> str:
    """Returns the name of a signal: ``SIGSEGV``, or ``signal 34`` where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
