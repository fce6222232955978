"""A machine adds to the costs of a run once it has measured a dozen of them alike."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collage_engine.farm.admission import ALIKE_S, COMPARED, CONSTANT, remember, remembered
from collage_engine.farm.coordinator import Coordinator, FarmSettings, Task
from collage_engine.farm.messages import (
    Claim,
    Claimed,
    Envelope,
    GroupAnswer,
    GroupRequest,
    ModelFiles,
    News,
    Nothing,
    RunRequest,
    SharedGroup,
    encode,
    read,
)
from collage_engine.farm.placing import Placing
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost
from collage_engine.records.numbering import OperatorNumber
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.service.run_client import Ticket
from collage_engine.store.measurement import Measurement
from collage_engine.store.store import Store
from tests.support.farm_carrier import ENGINE, LIBRARIES, FakeCarrier, Sent, hello

QUICK = FarmSettings(tick_s=0.02, refresh_s=0.0)
GROUPS = 20


def key(number: int) -> str:
    return f"{number:064x}"


def group(number: int) -> SharedGroup:
    candidate = Candidate(
        id=f"tvm:{number}",
        instance=ToolchainInstance(toolchain="tvm"),
        nodes=(OperatorNumber(number),),
        label=f"op{number}",
        key=key(number),
    )
    return SharedGroup(id=f"g{number}", candidates=(candidate,))


def measurement(wanted: str, us: float) -> Measurement:
    return Measurement(key=wanted, cost=Cost(state="measured", median_us=us, count=3))


class Measuring(FakeCarrier):
    """Machines that measure groups at once, each slower by its factor."""

    def __init__(self, slower: dict[str, float]) -> None:
        super().__init__()
        self.slower = slower
        self.asked: list[tuple[str, str]] = []
        """Machine and key of all that was to be measured."""
        self.answers = {"group": self.group}

    def group(self, sent: Sent) -> None:
        request = read(sent.message, GroupRequest)
        keys = [candidate.key for candidate in request.candidates]
        self.asked += [(sent.address, one) for one in keys]
        found = tuple(measurement(one, 10.0 * self.slower[sent.address]) for one in keys)
        # Not within the coordinator's own call, as no carrier does.
        threading.Timer(0.001, sent.answer, (encode(GroupAnswer(measurements=found)),)).start()

    def beside(self, address: str, name: str, message: bytes, done: Callable) -> None:
        answer: object = Nothing()
        if name == "claim":
            # The run has measured the first ones itself.
            open_groups = read(message, Claim).groups
            answer = Claimed(tuple(one for one in open_groups if int(one[1:]) >= COMPARED))
        done(encode(Envelope(body=encode(answer))))


class Run:
    """A run on machine "a" that shares its groups, while "b" is idle."""

    def __init__(self, folder: Path, slower: float) -> None:
        self.carrier = Measuring({"a": 1.0, "b": slower})
        self.coordinator = Coordinator(self.carrier, ENGINE, LIBRARIES, QUICK)
        self.store = Store(folder / "measurements.db")
        self.carrier.join("a")
        self.coordinator.submit(Task(name="run", message=b"", done=lambda *_: None, owner="run"))
        self.carrier.take()
        self.carrier.join("b")
        self.until(lambda: self.states() == {"a": "measuring", "b": "idle"})
        self.pool = self.coordinator.status().pools[0].name
        model = ModelFiles(name="model.onnx", files={"model.onnx": "0" * 64})
        request = RunRequest(model=model, settings=RunSettings(), run_id="r1")
        self.placing = Placing(
            self.coordinator, self.pool, self.store, model, {}, request, Ticket(), lambda _: None
        )
        self.placing.machine = "a"
        groups = tuple(group(number) for number in range(GROUPS))
        self.placing._take(News(lease="run", groups=groups, shares=True, limit_s=600.0), "a")

    def states(self) -> dict[str, str]:
        return {one.name: one.state for one in self.coordinator.status().machines}

    def pool_of(self, name: str) -> str:
        return next(one.pool for one in self.coordinator.status().machines if one.name == name)

    def until(self, holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < ends, self.coordinator.status()
            time.sleep(0.005)

    def goes_on(self, holds: Callable[[], bool], limit_s: float = 10.0) -> bool:
        """Let the run go on until something is so; whether it came to that."""
        ends = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > ends:
                return False
            self.placing._help()
            with contextlib.suppress(queue.Empty):
                self.placing._inbox.get(timeout=0.005)()
        return True

    def measure(self, count: int) -> None:
        """Machine "a" has measured so many of the candidates."""
        self.store.put_many([measurement(key(number), 10.0) for number in range(count)])


@pytest.fixture
def begun(tmp_path, monkeypatch) -> Iterator[Callable[[float], Run]]:
    monkeypatch.setattr("collage_engine.farm.placing.COMPARE_EVERY_S", 0.0)
    runs: list[Run] = []

    def begin(slower: float) -> Run:
        runs.append(Run(tmp_path, slower))
        return runs[-1]

    yield begin
    for run in runs:
        run.coordinator.close()


def test_a_machine_that_was_there_before_the_run_is_compared_before_it_helps(begun) -> None:
    run = begun(1.05)
    run.measure(COMPARED - 1)
    assert not run.goes_on(lambda: len(run.carrier.asked) >= COMPARED, 0.3)
    assert len(run.carrier.asked) == COMPARED - 1, "it measures what is known already"
    assert not run.coordinator.are_alike("a", "b"), "no dozen is known yet"
    run.measure(COMPARED)
    assert run.goes_on(lambda: run.coordinator.are_alike("a", "b"))
    compared = run.carrier.asked[:COMPARED]
    assert compared == [("b", key(number)) for number in range(COMPARED)]
    last = key(GROUPS - 1)
    assert run.goes_on(lambda: run.store.get(last) is not None)
    assert run.store.get(last).machine == "b" and run.pool_of("b") == run.pool
    assert run.store.get(key(0)).median_us == 10.0, "what it was compared by stays that of a"


def test_a_slower_machine_gets_a_pool_of_its_own_and_does_not_help(begun) -> None:
    run = begun(3.0)
    run.measure(COMPARED)
    assert run.goes_on(lambda: run.pool_of("b") == f"{run.pool}-b")
    assert not run.goes_on(lambda: len(run.carrier.asked) > COMPARED, 0.3)
    reason = next(one.reason for one in run.coordinator.status().machines if one.name == "b")
    assert "3.00 times slower" in reason


def test_a_run_that_begins_again_elsewhere_compares_anew(begun) -> None:
    run = begun(1.0)
    run.measure(3)
    assert run.goes_on(lambda: len(run.carrier.asked) == 3)
    run.placing._began("c", "c")
    assert run.goes_on(lambda: run.placing.machine == "c")
    assert run.coordinator.begin_comparing("b"), "nobody compares it any more"


def test_what_was_found_is_known_to_the_next_coordinator_for_a_day(begun, monkeypatch) -> None:
    run = begun(1.0)
    run.measure(COMPARED)
    assert run.goes_on(lambda: run.coordinator.are_alike("a", "b"))
    known = remembered(run.store)
    assert known == {run.pool: [frozenset({"a", "b"})]}
    carrier = FakeCarrier()
    other = Coordinator(carrier, ENGINE, LIBRARIES, QUICK, alike=known)
    try:
        carrier.join("a")
        carrier.join("b", hello(cores=8))
        carrier.join("c")
        run.until(lambda: [m.state for m in other.status().machines] == ["idle"] * 3)
        assert not other.are_alike("a", "b"), "that b is in another pool"
        carrier.leave("b")
        run.until(lambda: other.status().machines[1].state == "lost")
        carrier.join("b")
        run.until(lambda: other.status().machines[-1].state == "idle")
        assert not other.are_alike("a", "b"), "it may be another machine than at first"
    finally:
        other.close()
    carrier = FakeCarrier()
    third = Coordinator(carrier, ENGINE, LIBRARIES, QUICK, alike=known)
    try:
        carrier.join("b")
        carrier.join("a")
        run.until(lambda: third.are_alike("a", "b"))
        assert not third.are_alike("a", "c")
    finally:
        third.close()
    now = time.time()
    monkeypatch.setattr("collage_engine.farm.admission.time.time", lambda: now + ALIKE_S + 60)
    assert remembered(run.store) == {}


@pytest.mark.parametrize(
    "content", [5, {"a": 1}, [5], [["pool", "a", "b"]], [["pool", "a", "b", 1e300]], [[1, 2, 3, 4]]]
)
def test_what_a_store_of_another_maker_holds_is_left_out(tmp_path, content) -> None:
    store = Store(tmp_path / "measurements.db")
    store.put_constant(CONSTANT, content)
    assert remembered(store) == {}
    remember(store, "pool", "a", "b")
    remember(store, "pool", "a", "b")
    assert remembered(store) == {"pool": [frozenset({"a", "b"})]}


def test_a_machine_is_compared_by_one_run_at_a_time(begun) -> None:
    run = begun(1.0)
    run.measure(COMPARED)
    assert run.coordinator.begin_comparing("b")
    assert not run.goes_on(lambda: bool(run.carrier.asked), 0.3)
    run.coordinator.end_comparing("b")
    assert run.goes_on(lambda: run.coordinator.are_alike("a", "b"))
