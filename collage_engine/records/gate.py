"""What ``collage check`` found out: whether a model is slower than a baseline, and what else."""

from __future__ import annotations

from typing import Literal

import msgspec

CheckName = Literal["latency", "stored latency", "error", "memory"]
"""``latency`` compares two artifacts in common rounds; ``stored latency`` compares with the time
that the baseline holds."""
CheckOutcome = Literal["passed", "failed", "tie", "not compared"]
"""``tie``: the machine is too noisy to say."""


class GateCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a gate looks at."""

    name: CheckName
    outcome: CheckOutcome
    value: float | None = None
    """Of a latency, how many times the baseline's it is; of an error, ``max|y-r| / max|r|``; of
    memory, bytes."""
    limit: float | None = None
    """The largest value that passes."""
    low: float | None = None
    """Lower end of the 99 % interval in which the value lies; None: it is not an estimate."""
    high: float | None = None
    pairs: int = 0
    """Pairs of processes that were timed in common rounds."""
    us: float | None = None
    """Microseconds of a call."""
    baseline_us: float | None = None


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``collage check --json``."""

    model: str
    against: str
    outcome: CheckOutcome
    """Failed where a check failed; else that of the latency."""
    machine: str
    """The device of this machine."""
    baseline_machine: str
    """The device on which the baseline's own time was measured; empty: untold."""
    checks: tuple[GateCheck, ...]

    @property
    def same_machine(self) -> bool:
        """Tell whether the baseline's own time was measured on a machine like this one."""
        return self.machine == self.baseline_machine
