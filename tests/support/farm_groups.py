"""Runs a coordinator that has a farm measure groups of candidates, round after round.

``python -m tests.support.farm_groups ADDRESS REQUESTS JOURNAL`` sends each request of a file (a
JSON list of ``GroupRequest`` with the model's path) as a task, stores what is answered, and only
then notes it in the journal. The campaign of kills runs it: whatever the journal names must be in
the store, and each task must end once.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from collage_engine.farm.coordinator import Task
from collage_engine.farm.farms import Connection
from collage_engine.farm.messages import GroupAnswer, GroupRequest, encode, read
from collage_engine.farm.placing import arrived
from collage_engine.records.errors import CollageError, FarmError
from collage_engine.records.settings import RunSettings
from collage_engine.records.typed import decode
from collage_engine.timing.shared_measurer import ENDED_PROCESS

JOINS_S = 300.0
"""Seconds to wait for a machine; chosen: on a busy machine one takes half a minute to come back."""
AGAIN_S = 0.5
"""Seconds between two attempts to reach a scheduler that is being started again; chosen."""


def prepare(path: Path, toolchains: tuple[str, ...]) -> bytes:
    """Returns the requests for all groups of a model's candidates, as the file's content."""
    from collage_engine.candidates.open_model import OpenModel
    from collage_engine.farm.model_files import model_files
    from collage_engine.timing.measurer import group_candidates

    settings = RunSettings(threads=1, toolchains=toolchains)
    menu = OpenModel(str(path), {}).menu(settings)
    model, _ = model_files(str(path), {})
    return encode(
        [
            GroupRequest(
                model=model,
                settings=settings,
                fingerprint=menu.keys.fingerprint,
                candidates=group.candidates,
                versions=menu.keys.versions,
                toolchains=toolchains,
            )
            for group in group_candidates(menu.candidates)
        ]
    )


class Rounds:
    """Has all requests measured again and again.

    Args:
        address: The farm's.
        requests: What is to be measured.
        model: The model's file.
        journal: File that gets a line for each cost that was stored.
    """

    def __init__(
        self, address: str, requests: list[GroupRequest], model: Path, journal: Path
    ) -> None:
        self.address = address
        self.requests = requests
        sha256 = requests[0].model.files[requests[0].model.name]
        self.contents = {sha256: model}
        self.journal = journal.open("a", buffering=1)
        self.connection: Connection | None = None
        self.lock = threading.Lock()

    def note(self, *words: object) -> None:
        """Write a line into the journal."""
        with self.lock:
            self.journal.write(" ".join(map(str, words)) + "\n")

    def connected(self) -> Connection:
        """Returns the connection to the farm, made anew after the scheduler was lost."""
        while self.connection is None or self.connection.lost:
            if self.connection is not None:
                self.connection.close()
                self.connection = None
            try:
                self.connection = Connection(self.address)
            except FarmError:
                time.sleep(AGAIN_S)
        return self.connection

    def do(self) -> None:
        """Does one round: every group is measured once; tasks that are given up are asked again."""
        left = dict(enumerate(self.requests))
        while left:
            connection = self.connected()
            try:
                pool = connection.coordinator.wait_for_pool("", JOINS_S).name
            except FarmError:
                continue
            ends: Counter[str] = Counter()
            over = threading.Event()
            wanted = len(left)
            for number, request in list(left.items()):
                self._submit(connection, pool, number, request, left, ends, over, wanted)
            over.wait()
            time.sleep(0.05)  # an end that comes twice would be told now
            for lease, count in ends.items():
                if count != 1:
                    self.note("FAULT", f"task {lease} ended {count} times")
        self.note("round")

    def _submit(
        self,
        connection: Connection,
        pool: str,
        number: int,
        request: GroupRequest,
        left: dict[int, GroupRequest],
        ends: Counter[str],
        over: threading.Event,
        wanted: int,
    ) -> None:
        name = f"{number}-{time.monotonic_ns()}"

        def done(body: bytes | CollageError, machine: str) -> None:
            try:
                self._take(connection, number, body, machine, left)
            finally:
                ends[name] += 1
                if len(ends) == wanted:
                    over.set()

        connection.coordinator.submit(
            Task(
                name="group",
                message=encode(request),
                done=done,
                owner="rounds",
                pool=pool,
                files=self.contents,
                limit_s=120.0,
                checked=True,
            )
        )

    def _take(
        self,
        connection: Connection,
        number: int,
        body: bytes | CollageError,
        machine: str,
        left: dict[int, GroupRequest],
    ) -> None:
        """Store what a machine measured, and then note it."""
        if isinstance(body, CollageError):
            self.note("lost", number, machine or "-", str(body).replace("\n", " ")[:120])
            return
        wanted = {candidate.key for candidate in self.requests[number].candidates}
        found = arrived(read(body, GroupAnswer).measurements, machine)
        strange = [m.key for m in found if m.key not in wanted]
        if strange:
            self.note("FAULT", f"{machine} answered with costs of another group")
        kept = [m for m in found if not (m.cost.reason or "").startswith(ENDED_PROCESS)]
        connection.store.put_many(kept)
        for m in kept:
            self.note("cost", m.key, machine)
        if {m.key for m in kept} == wanted:
            left.pop(number, None)
        self.note("group", number, machine)


def main() -> None:
    """Measure until this process is ended."""
    address, requests, model, journal = sys.argv[1:]
    rounds = Rounds(
        address,
        decode(Path(requests).read_bytes(), list[GroupRequest]),
        Path(model),
        Path(journal),
    )
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            rounds.do()


if __name__ == "__main__":
    main()
