"""The rule for faults: who crashes or hangs costs infinity, and is out of a run at the second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from threading import Lock

FAULTS = 2
"""Faults of a toolchain in a run after which it is out of it: the fewest that are more than one
accident, since each costs a process and the seconds for which it hung."""


def left_out_sentence(toolchain: str, reason: str) -> str:
    """Return the sentence that says that a toolchain is out of a run."""
    return f"{toolchain} is left out of this run: {reason}"


class FaultTracker:
    """Keeps which toolchains crashed or hung in a run, and which are out of it. Thread-safe.

    A partition or placement that fails costs infinity whatever this says; what is out here is not
    tried any more. A process that something outside killed is no fault of a toolchain.

    Attributes:
        left_out: The toolchains that are out of the run, each with the reason.
    """

    def __init__(self, on_left_out: Callable[[str], None] = lambda sentence: None) -> None:
        """Begin a run.

        Args:
            on_left_out: Is told of each toolchain that goes out, in a sentence.
        """
        self.left_out: dict[str, str] = {}
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
            known = toolchain in self.left_out
            self.left_out.setdefault(toolchain, reason)
        if not known:
            self._on_left_out(left_out_sentence(toolchain, reason))

    def reason_against(self, toolchains: Iterable[str]) -> str | None:
        """Return why nothing with these toolchains is tried; None: it is."""
        for name in toolchains:
            if name in self.left_out:
                return f"{name} is out of this run: {self.left_out[name]}"
        return None
