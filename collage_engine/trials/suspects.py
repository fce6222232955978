"""Toolchains whose placements end their processes: named in sentences, and not tried for ever."""

from __future__ import annotations

from collections import Counter
from threading import Lock

from collage_engine.machine.worker import WorkerCrashed, WorkerTimeout
from collage_engine.records.errors import CollageError
from collage_engine.trials.contender import Contender

HANGS = 2
"""Placements with a toolchain that hang before further ones with it are not tried; chosen: one may
hang because of another toolchain in it."""


class Suspects:
    """What is known of a run's toolchains from the processes that ended early. Thread-safe."""

    def __init__(self) -> None:
        self._hung: Counter[str] = Counter()
        self._good: set[str] = set()
        self._lock = Lock()

    def sentence(
        self, contender: Contender, error: CollageError, doing: str = "it was timed"
    ) -> str:
        """Return why a placement failed; names its toolchains where its process ended early.

        Args:
            contender: The placement.
            error: What its process or its builder raised.
            doing: What happened to the placement meanwhile: follows "while".
        """
        if not isinstance(error, (WorkerCrashed, WorkerTimeout)):
            return str(error)
        names = _toolchains(contender)
        if isinstance(error, WorkerTimeout):
            with self._lock:
                self._hung.update(names)
            return f"{' with '.join(names)}: {error} while {doing}"
        return f"{' with '.join(names)}: {error}"

    def runs(self, contender: Contender) -> None:
        """Note that a placement runs: none of its toolchains hangs by itself."""
        with self._lock:
            self._good.update(_toolchains(contender))

    def reason_against(self, contender: Contender) -> str | None:
        """Return why a placement is not worth a trial; None: it is."""
        with self._lock:
            for name in _toolchains(contender):
                if self._hung[name] >= HANGS and name not in self._good:
                    return f"{name} hung in {self._hung[name]} placements before"
        return None


def _toolchains(contender: Contender) -> list[str]:
    return list(dict.fromkeys(part.instance.toolchain for part in contender.cover))
