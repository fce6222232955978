"""How a run shares groups of candidates with other machines: a folder beside the run's process.

The run says which groups others may measure (``GroupsShared``) and which costs it has stored
(``Stored``), as events. Whoever carries these to other machines reserves groups and puts the costs
that come back into the folder. A group is measured by whoever reserves it first: a reservation is a
file that only one process can create.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from collage_engine.records.candidate import Candidate
from collage_engine.records.checks import cost_fault
from collage_engine.records.errors import MeasureError
from collage_engine.records.files import write_atomically
from collage_engine.records.typed import decode
from collage_engine.store.measurement import Measurement

POLL_S = 0.02
"""Seconds between two looks into the folder; chosen: a look lists an almost empty folder."""


@dataclass(frozen=True)
class Stored:
    """Event: measurements, with raw times, that a run has just stored."""

    measurements: tuple[Measurement, ...]


@dataclass(frozen=True)
class GroupsShared:
    """Event: groups that other machines may measure; an empty one takes all back."""

    groups: Mapping[str, tuple[Candidate, ...]]
    fingerprint: str
    versions: Mapping[str, str]
    toolchains: tuple[str, ...]
    """That the measuring child is given the environment of."""
    limit_s: float
    """Seconds that are left for them."""


def group_id(candidates: Sequence[Candidate]) -> str:
    """Return the name of a group: equal for the same candidates of the same model."""
    keys = ",".join(sorted(f"{candidate.id}={candidate.key}" for candidate in candidates))
    return hashlib.sha256(keys.encode()).hexdigest()[:24]


class Exchange:
    """The folder through which a run shares groups with other machines.

    The run has one of these objects on the folder; whoever carries messages has another one.
    """

    def __init__(self, folder: str | Path, *, create: bool = False) -> None:
        self.folder = Path(folder)
        self._claims = self.folder / "claims"
        self._results = self.folder / "results"
        self._known = self.folder / "known.json"
        if create:
            self._claims.mkdir(parents=True)
            self._results.mkdir()

    # -- both sides --------------------------------------------------------------------

    def claim(self, name: str) -> bool:
        """Reserve a group.

        Returns:
            Whether it is reserved for the caller; False: somebody else has reserved it before.

        Raises:
            MeasureError: The name is no name of a group.
        """
        try:
            os.close(os.open(self._claims / _safe(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def give_back(self, names: Iterable[str]) -> None:
        """Let others reserve groups that were reserved."""
        for name in names:
            (self._claims / _safe(name)).unlink(missing_ok=True)

    # -- who carries -------------------------------------------------------------------

    def deliver(self, name: str, measurements: Sequence[Measurement]) -> None:
        """Put the measurements of a group that another machine has made, for the run to take."""
        write_atomically(self._results / f"{_safe(name)}.json", msgspec.json.encode(measurements))

    def deliver_known(self, measurements: Sequence[Measurement]) -> None:
        """Put measurements that were known before the run, for the run to begin with."""
        write_atomically(self._known, msgspec.json.encode(measurements))

    def wait_for_known(
        self, timeout_s: float, stop: Callable[[], bool] = lambda: False
    ) -> tuple[Measurement, ...]:
        """Wait for the measurements that were known before the run, and return them.

        Args:
            timeout_s: Seconds to wait at most.
            stop: Tells whether to wait no longer.

        Returns:
            The measurements; none where they do not come in time.

        Raises:
            MeasureError: The content is something else.
        """
        ends = time.monotonic() + timeout_s
        while not self._known.exists():
            if time.monotonic() > ends or stop():
                return ()
            time.sleep(POLL_S)
        return checked(self._known.read_bytes())

    # -- the run -----------------------------------------------------------------------

    def results(self) -> dict[str, tuple[Measurement, ...]]:
        """Take the measurements that have arrived, by group; each is returned once."""
        found = {}
        for place in sorted(self._results.glob("*.json")):
            content = place.read_bytes()
            with contextlib.suppress(MeasureError):
                found[place.stem] = checked(content)
            place.unlink()
        return found


def _safe(name: str) -> str:
    """Return the name of a group, which may be the name of a file.

    Raises:
        MeasureError: It contains anything but letters and digits.
    """
    if not name.isalnum():
        raise MeasureError(f"{name[:80]!r} is no name of a group")
    return name


def checked(content: bytes) -> tuple[Measurement, ...]:
    """Return measurements from another machine, without those that may not be stored.

    Args:
        content: A list of measurements as JSON.

    Raises:
        MeasureError: The content is something else.
    """
    try:
        found = decode(content, tuple[Measurement, ...])
    except msgspec.MsgspecError as error:
        raise MeasureError(f"another machine sent no measurements: {error}") from error
    return tuple(m for m in found if usable(m))


def usable(measurement: Measurement) -> bool:
    """Return whether a measurement of another machine may be stored."""
    named = len(measurement.key) == 64 and set(measurement.key) <= set("0123456789abcdef")
    return named and measurement.cost.state != "unknown" and cost_fault(measurement.cost) is None
