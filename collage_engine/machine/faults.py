"""The rule for faults, and the mark of what is at risk in a child process.

The child writes a few bytes of memory that it shares with its parent before it runs what is not
ours: whom that belongs to, what is done, and until when it must have ended. That costs less than a
microsecond. Its parent ends it where that time is over, and reads whom to blame once it has ended
(``machine.worker``).
"""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Lock

_RECORD = struct.Struct("<dd112s32s")
"""End of the time on the system's monotonic clock, its length, who is at risk, and doing what. The
end comes first: it alone decides whether the time is over, and eight bytes are written at once."""
RISK_BYTES = _RECORD.size


@dataclass(frozen=True)
class AtRisk:
    """Who is at risk, doing what, and within which time in seconds."""

    who: str
    doing: str = ""
    limit_s: float = math.inf
    until_s: float = math.inf
    """Moment of the monotonic clock at which it must have ended."""


class RiskMarker:
    """Memory that says who is at risk.

    Args:
        descriptor: Of a file in memory that is shared, of ``RISK_BYTES``; -1: memory of its own.
    """

    def __init__(self, descriptor: int = -1) -> None:
        self._map = mmap.mmap(descriptor, RISK_BYTES)

    def share(self, descriptor: int) -> None:
        """Use memory that another process reads from now on; see the constructor."""
        self._map = mmap.mmap(descriptor, RISK_BYTES)

    def set(self, who: str, doing: str = "", limit_s: float = math.inf) -> None:
        """Note who is at risk from now on.

        Args:
            who: The name of a toolchain or a candidate, at most 112 bytes.
            doing: What happens to it: follows "while".
            limit_s: Seconds that it may take.
        """
        self.put(AtRisk(who, doing, limit_s, time.monotonic() + limit_s))

    def put(self, at_risk: AtRisk | None) -> None:
        """Note again what was noted before; None: nobody is at risk."""
        one = at_risk or AtRisk("")
        # Copied over the old bytes: ``pack_into`` fills them with zeros first, and a reader of the
        # end just then would take it for over.
        self._map[:] = _RECORD.pack(one.until_s, one.limit_s, one.who.encode(), one.doing.encode())

    def clear(self) -> None:
        """Note that nobody is at risk."""
        self.put(None)

    @contextlib.contextmanager
    def during(self, who: str, doing: str = "", limit_s: float = math.inf) -> Iterator[None]:
        """Note for a block who is at risk, as ``set`` does; after it what was noted before."""
        before = self.get()
        self.set(who, doing, limit_s)
        try:
            yield
        finally:
            self.put(before)

    def get(self) -> AtRisk | None:
        """Return who is at risk; None: nobody."""
        until_s, limit_s, who, doing = _RECORD.unpack_from(self._map, 0)
        name, what = (text.rstrip(b"\0").decode(errors="replace") for text in (who, doing))
        return AtRisk(name, what, limit_s, until_s) if name else None


OWN_RISK = RiskMarker()
"""Who is at risk in this process: in a child of a ``Worker`` the memory that its parent reads."""

FAULTS = 2
"""Faults of a toolchain in a run after which it is out of it: the fewest that are more than one
accident, since each costs a process and the seconds for which it hung."""


class FaultTracker:
    """Keeps which toolchains crashed or hung in a run, and which are out of it. Thread-safe.

    A partition or placement that fails costs infinity whatever this says; what is out here is not
    tried any more. A process that something outside killed is no fault of a toolchain.

    Attributes:
        left_out: The toolchains that are out of the run, each with the reason.
        title_of: Gives the title that sentences call a toolchain by, of its name.
    """

    def __init__(self, on_left_out: Callable[[str], None] = lambda sentence: None) -> None:
        """Begin a run.

        Args:
            on_left_out: Is told of each toolchain that goes out, in a sentence.
        """
        self.left_out: dict[str, str] = {}
        self.title_of: Callable[[str], str] = str
        self._on_left_out = on_left_out
        self._faults: Counter[str] = Counter()
        self._sound: set[str] = set()
        self._lock = Lock()

    def runs(self, toolchains: Iterable[str]) -> None:
        """Note that something runs that these toolchains made together: none of them is broken."""
        with self._lock:
            self._sound.update(toolchains)

    def blame(self, toolchains: Iterable[str], reason: str) -> None:
        """Count a crash or a hang of something that these toolchains made together.

        Where there are several of them, those that ran elsewhere are not to blame.

        Args:
            toolchains: Their names.
            reason: What happened.
        """
        names = set(toolchains)
        with self._lock:
            culprits = sorted(names - self._sound if len(names) > 1 else names)
            self._faults.update(culprits)
            out = [name for name in culprits if self._faults[name] >= FAULTS]
        for name in out:
            self.leave_out(name, f"it failed {FAULTS} times, the last time: {reason}")

    def leave_out(self, toolchain: str, reason: str) -> None:
        """Take a toolchain out of the run at once, as one that cannot be asked about the model."""
        with self._lock:
            was_left_out = toolchain in self.left_out
            self.left_out.setdefault(toolchain, reason)
        if not was_left_out:
            self._on_left_out(self.sentence(toolchain))

    def sentence(self, toolchain: str) -> str:
        """Return the sentence that says that a toolchain is out of the run, and why."""
        return f"{self.title_of(toolchain)} is left out of this run: {self.left_out[toolchain]}"

    def reason_against(self, toolchains: Iterable[str]) -> str | None:
        """Return why nothing with these toolchains is tried; None: it is."""
        for name in toolchains:
            if name in self.left_out:
                return f"{self.title_of(name)} is out of this run: {self.left_out[name]}"
        return None
