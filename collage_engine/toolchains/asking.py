"""Notes which toolchain this process is asking something, for its parent to read.

Finding candidates asks toolchains in the process that has the model open. One that crashes there
ends that process, and one that does not answer has the parent end it (``machine.faults``); the
parent starts another one that leaves the toolchain out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from collage_engine.machine.faults import RiskMarker
from collage_engine.support.errors import ToolchainFault, fault_reason
from collage_engine.support.time_limits import ANSWER_S, STEP_SHARE, within_budget

SHARE = STEP_SHARE / 2
"""Share of the time that a run has left which one answer, or the rules, may take: what any step may
take must do for it and for opening the model again, to be placed without the toolchain."""

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


@dataclass
class _Process:
    """Where this process notes whom it asks, and how long its job has left."""

    marker: RiskMarker | None = None
    left_s: Callable[[], float] = lambda: math.inf


_process = _Process()


def note_questions(marker: RiskMarker | None, left_s: Callable[[], float]) -> None:
    """Say where questions are noted from now on.

    Args:
        marker: The file; None: nowhere.
        left_s: Returns the seconds that the job has left.
    """
    _process.marker, _process.left_s = marker, left_s


@contextlib.contextmanager
def asking(toolchain: str, limit_s: float = ANSWER_S) -> Iterator[None]:
    """Note during a block that a toolchain is asked; what it raises becomes a ``ToolchainFault``.

    Blocks may be nested: the outer question is open again when the inner one is answered.

    Args:
        toolchain: Its name.
        limit_s: Seconds after which the process is ended if the block has not been.
    """
    marker = _process.marker
    before = marker.get() if marker is not None else None
    if marker is not None:
        marker.set(toolchain, "", within_budget(limit_s, _process.left_s(), share=SHARE))
    try:
        yield
    except ToolchainFault:
        raise
    except (Exception, SystemExit) as error:
        reason = fault_reason(error)
        raise ToolchainFault(
            f"{toolchain} failed when it was asked about the model: {reason}", toolchain
        ) from error
    finally:
        if marker is not None:
            marker.put(before)


def asked(toolchain: str, question: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Return a function of a toolchain, with every call of it noted; see ``asking``."""

    def ask(*arguments: Arguments.args, **options: Arguments.kwargs) -> Answer:
        with asking(toolchain):
            return question(*arguments, **options)

    return ask
