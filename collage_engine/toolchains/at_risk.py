"""Notes which toolchain a process is asking something, where a crash of the process leaves it.

Finding candidates asks toolchains in the process that has the model open. One that crashes there
ends that process; whoever started it reads the note, and starts another one that leaves the
toolchain out (``COLLAGE_LEFT_OUT``). One that does not answer is ended by a watching thread.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import ParamSpec, TypeVar

from collage_engine.records.errors import ToolchainFault
from collage_engine.records.reasons import short_reason

NOTE = "COLLAGE_AT_RISK"
"""Environment variable: the file that holds the name of the toolchain that is being asked."""
LEFT_OUT = "COLLAGE_LEFT_OUT"
"""Environment variable that says, as JSON, which toolchains are left out, each with the reason."""
ANSWER_S = 60.0
"""Seconds that a toolchain may take to answer one question about a model; chosen, some thousand
times what any takes."""
RULES_S = 600.0
"""Seconds that finding candidates by a toolchain's rules may take; chosen: the largest models take
a tenth on a machine that does other work beside."""
NOTE_BYTES = 128
HUNG = 70
"""Exit status of a process whose toolchain did not answer; chosen."""

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class _Asked:
    """The question that is open in this process, if any."""

    def __init__(self) -> None:
        self.toolchain = ""
        self.until_s = 0.0
        """Moment of the monotonic clock at which it must have answered."""


_asked = _Asked()


@contextlib.contextmanager
def asking(toolchain: str, limit_s: float = ANSWER_S) -> Iterator[None]:
    """Note during a block that a toolchain is asked; what it raises becomes a ``ToolchainFault``.

    Blocks may be nested: the outer question is open again when the inner one is answered.

    Args:
        toolchain: Its name.
        limit_s: Seconds after which the process is ended if the block has not been.
    """
    note = _note()
    before = _asked.toolchain, _asked.until_s
    _open(note, toolchain, time.monotonic() + limit_s)
    try:
        yield
    except ToolchainFault:
        raise
    except (Exception, SystemExit) as error:
        reason = short_reason(error, with_type=True)
        raise ToolchainFault(
            f"{toolchain} failed when it was asked about the model: {reason}", toolchain
        ) from error
    finally:
        _open(note, *before)


def _open(note: mmap.mmap | None, toolchain: str, until_s: float) -> None:
    """Note the question that is open from now on; an empty name: none."""
    if note is not None:
        note[:NOTE_BYTES] = toolchain.encode()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")
        _asked.toolchain, _asked.until_s = "", until_s  # the watch reads the name first
        _asked.toolchain = toolchain


def asked(
    toolchain: str, question: Callable[Arguments, Answer], limit_s: float = ANSWER_S
) -> Callable[Arguments, Answer]:
    """Return a function of a toolchain, with every call of it noted; see ``asking``."""

    def ask(*arguments: Arguments.args, **options: Arguments.kwargs) -> Answer:
        with asking(toolchain, limit_s):
            return question(*arguments, **options)

    return ask


def read_note(path: Path) -> str:
    """Return the toolchain that a process was asking when it ended; empty: none."""
    try:
        return path.read_bytes()[:NOTE_BYTES].partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def left_out() -> dict[str, str]:
    """Return the toolchains that this process leaves out, with the reasons."""
    return dict(json.loads(os.environ.get(LEFT_OUT, "{}")))


def leave_out(toolchain: str, reason: str) -> None:
    """Leave a toolchain out in this process, and in those that it starts from now on."""
    os.environ[LEFT_OUT] = json.dumps(left_out() | {toolchain: reason})


@cache
def _note() -> mmap.mmap | None:
    """Return the mapped file of this process; None where nobody reads one."""
    path = os.environ.get(NOTE)
    if not path:
        return None
    try:
        with open(path, "w+b") as stream:
            stream.truncate(NOTE_BYTES)
            mapped = mmap.mmap(stream.fileno(), NOTE_BYTES)
    except OSError:
        return None
    threading.Thread(target=_watch, name="toolchain-watch", daemon=True).start()
    return mapped


def _watch() -> None:
    """End this process when a toolchain does not answer; the note stays as it is."""
    while True:
        time.sleep(1.0)
        toolchain = _asked.toolchain
        if toolchain and time.monotonic() > _asked.until_s:
            sys.stderr.write(f"{toolchain} did not answer in time\n")
            sys.stderr.flush()
            os._exit(HUNG)
