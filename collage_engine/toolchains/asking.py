"""Notes which toolchain this process is asking something, for its parent to read.

Finding candidates asks toolchains in the process that has the model open. One that crashes there
ends that process, and one that does not answer has the parent end it (``machine.faults``); the
parent starts another one that leaves the toolchain out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from collage_engine.machine.faults import OWN_RISK
from collage_engine.support.errors import ToolchainFault, fault_reason
from collage_engine.support.time_limits import ANSWER_S, STEP_SHARE, within_budget

SHARE = STEP_SHARE / 2
"""Share of the time that a run has left which one answer, or the rules, may take: what any step may
take must do for it and for opening the model again, to be placed without the toolchain."""

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def _unlimited_s() -> float:
    return math.inf


job_left_s: Callable[[], float] = _unlimited_s
"""Returns the seconds that this process's job has left; each job sets its own."""


@contextlib.contextmanager
def asking(toolchain: str, limit_s: float = ANSWER_S) -> Iterator[None]:
    """Note during a block that a toolchain is asked; what it raises becomes a ``ToolchainFault``.

    Blocks may be nested: the outer question is open again when the inner one is answered.

    Args:
        toolchain: Its name.
        limit_s: Seconds after which the process is ended if the block has not been.
    """
    try:
        with OWN_RISK.during(toolchain, "", within_budget(limit_s, job_left_s(), share=SHARE)):
            yield
    except ToolchainFault:
        raise
    except (Exception, SystemExit) as error:
        reason = fault_reason(error)
        raise ToolchainFault(
            f"{toolchain} failed when it was asked about the model: {reason}", toolchain
        ) from error


def asked(toolchain: str, question: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Return a function of a toolchain, with every call of it noted; see ``asking``."""

    def ask(*arguments: Arguments.args, **options: Arguments.kwargs) -> Answer:
        with asking(toolchain):
            return question(*arguments, **options)

    return ask
