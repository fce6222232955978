"""The queue of a farm: one task a machine, failures, drift, pools; without any network."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collage_engine.farm.coordinator import Coordinator, FarmSettings, Task
from collage_engine.farm.farms import FarmJobs
from collage_engine.farm.messages import News, encode
from collage_engine.farm.placing import Placing
from collage_engine.records.errors import CollageError, FarmError, InfeasibleError
from collage_engine.records.event import Provisional
from collage_engine.records.farm import FarmPool, FarmStatus
from collage_engine.records.placement import CandidateCounts, Run
from collage_engine.records.results import RunUpdate
from collage_engine.records.settings import RunSettings
from collage_engine.store.store import Store
from tests.support.farm_carrier import ENGINE, LIBRARIES, FakeCarrier, hello

QUICK = FarmSettings(silence_s=0.4, pause_s=0.05, no_machine_s=0.4, tick_s=0.02, refresh_s=0.0)


@pytest.fixture
def carrier() -> FakeCarrier:
    return FakeCarrier()


@pytest.fixture
def farm(carrier: FakeCarrier) -> Iterator[Coordinator]:
    coordinator = Coordinator(carrier, ENGINE, LIBRARIES, QUICK)
    yield coordinator
    coordinator.close()


class Work:
    """A task, and how it ended."""

    def __init__(self, farm: Coordinator, message: bytes = b"{}", **options: object) -> None:
        self.ends: queue.Queue[tuple[bytes | CollageError, str]] = queue.Queue()
        self.news: queue.Queue[News] = queue.Queue()
        self.task = Task(
            name="group",
            message=message,
            done=lambda body, machine: self.ends.put((body, machine)),
            news=lambda news, machine: self.news.put(news),
            **options,  # type: ignore[arg-type]
        )
        farm.submit(self.task)

    def end(self) -> tuple[bytes | CollageError, str]:
        return self.ends.get(timeout=10)


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.005)


def states(farm: Coordinator) -> dict[str, str]:
    return {machine.name: machine.state for machine in farm.status().machines}


def machine(farm: Coordinator, name: str):
    return next(one for one in farm.status().machines if one.name == name)


def test_a_machine_gets_one_task_at_a_time_in_order(carrier, farm) -> None:
    carrier.join("a")
    works = [Work(farm, b"%d" % number) for number in range(3)]
    for number, work in enumerate(works):
        (sent,) = carrier.take()
        time.sleep(0.05)
        assert not carrier.sent, "it had a task already"
        assert sent.message == b"%d" % number
        sent.answer(b"done")
        assert work.end() == (b"done", "a")


def test_machines_are_shared_out_between_placements(carrier, farm) -> None:
    many = [Work(farm, b"many", owner="many", pool="") for _ in range(5)]
    one = Work(farm, b"one", owner="one")
    carrier.join("a")
    (first,) = carrier.take()
    carrier.join("b")
    (second,) = carrier.take()
    assert {first.message, second.message} == {b"many", b"one"}
    assert len(many) == 5 and one.ends.empty()


def test_the_task_of_a_dead_machine_goes_to_another_one_first_of_all(carrier, farm) -> None:
    carrier.join("a")
    lost, later = Work(farm, b"lost"), Work(farm, b"later")
    (sent,) = carrier.take()
    carrier.join("b")
    (other,) = carrier.take()
    assert (sent.message, other.message) == (b"lost", b"later")
    began = time.monotonic()
    carrier.leave("a")
    other.answer(b"2")
    (again,) = carrier.take()
    assert time.monotonic() - began < 1
    assert (again.address, again.message) == ("b", b"lost") and again.lease != sent.lease
    again.answer(b"1")
    assert lost.end() == (b"1", "b") and later.end() == (b"2", "b")
    assert states(farm)["a"] == "lost"


def test_an_answer_of_a_machine_that_was_given_up_is_dropped(carrier, farm) -> None:
    carrier.join("a")
    work = Work(farm)
    (sent,) = carrier.take()
    carrier.join("b")
    carrier.leave("a")
    (again,) = carrier.take()
    sent.answer(b"too late")
    again.answer(b"right")
    assert work.end() == (b"right", "b") and work.ends.empty()


def test_a_task_under_which_two_machines_died_is_given_up(carrier, farm) -> None:
    carrier.join("a")
    carrier.join("b")
    work = Work(farm)
    carrier.take()[0].lose("signal 9")
    carrier.take()[0].lose("signal 9")
    body, _ = work.end()
    assert isinstance(body, FarmError) and "lost under 2 machines: signal 9" in str(body)


def test_a_task_whose_process_died_is_tried_once_more_on_another_machine(carrier, farm) -> None:
    carrier.join("a")
    carrier.join("b")
    work = Work(farm)
    (sent,) = carrier.take()
    sent.answer(error="the pipeline died", kind="FarmError", again=True)
    (again,) = carrier.take()
    assert again.address != sent.address and "the pipeline died" in farm.status().last_error
    again.answer(error="the pipeline died", kind="FarmError", again=True)
    body, _ = work.end()
    assert isinstance(body, FarmError) and str(body) == "the pipeline died"


def test_a_frozen_machine_is_lost_after_its_silence(carrier, farm) -> None:
    carrier.join("a")
    work = Work(farm)
    (sent,) = carrier.take()
    carrier.join("b")
    for _ in range(4):  # signs of life keep it
        farm.news(encode(News(lease=sent.lease)))
        time.sleep(0.2)
        assert states(farm)["a"] == "measuring"
    (again,) = carrier.take()
    assert again.address == "b" and "no sign of life" in machine(farm, "a").reason
    again.answer(b"1")
    assert work.end()[1] == "b"


def test_a_machine_that_comes_back_works_again(carrier, farm) -> None:
    carrier.join("a")
    until(lambda: states(farm).get("a") == "idle")
    carrier.leave("a")
    until(lambda: states(farm)["a"] == "lost")
    carrier.join("a")
    work = Work(farm)
    carrier.take()[0].answer(b"1")
    assert work.end() == (b"1", "a")


def test_the_result_beside_a_drifted_probe_is_measured_elsewhere(carrier, farm) -> None:
    carrier.join("a")
    work = Work(farm, checked=True)
    (sent,) = carrier.take()
    carrier.join("b")
    sent.answer(b"wrong", drift=0.2)
    (again,) = carrier.take()
    assert again.name == "group" and again.address == "b"
    again.answer(b"right", drift=0.01)
    assert work.end() == (b"right", "b")


def test_a_machine_pauses_until_its_probe_is_right_and_is_set_aside_after_three_times(
    carrier, farm
) -> None:
    carrier.join("a")
    work = Work(farm, checked=True)
    for pause in range(2):
        (sent,) = carrier.take()
        assert sent.name == "group"
        sent.answer(b"wrong", drift=0.2)
        (probe,) = carrier.take()
        assert probe.name == "probe" and "20.0% slower" in machine(farm, "a").reason, pause
        probe.answer(b"{}", drift=0.0)
    carrier.take()[0].answer(b"wrong", drift=0.2)
    until(lambda: states(farm)["a"] == "set aside")
    assert "that was so 3 times" in machine(farm, "a").reason
    body, _ = work.end()
    assert isinstance(body, FarmError), "a pool of one machine that is lost has nobody left"


def test_pools_are_formed_by_what_keys_hold_and_say_in_what_they_differ(carrier, farm) -> None:
    carrier.join("a")
    carrier.join("b")
    carrier.join("c", hello(toolchains={"tvm": "0.27", "onednn": "4"}, busy="others use it"))
    carrier.join("d", hello(adapters={"tvm": "other", "onednn": "b"}))
    until(lambda: len(states(farm)) == 4 and "joining" not in states(farm).values())
    assert machine(farm, "a").pool == machine(farm, "b").pool
    assert len({machine(farm, name).pool for name in "acd"}) == 3
    assert "onednn is 4 instead of 3; others use it" in machine(farm, "c").reason
    assert "its adapter of tvm has other sources" in machine(farm, "d").reason
    pool = machine(farm, "c").pool
    work = Work(farm, pool=pool)
    (sent,) = carrier.take()
    assert sent.address == "c", "it is for that pool only"
    sent.answer(b"1")
    assert work.end()[1] == "c"
    assert farm.wait_for_pool("", 5).machines == ("a", "b")
    assert farm.wait_for_pool(pool, 5).name == pool
    with pytest.raises(FarmError, match="no one pool 'sparc'"):
        farm.wait_for_pool("sparc", 0.1)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (hello(engine="other"), "another version of Collage Explorer"),
        (hello(protocol=0), "another version of Collage Explorer"),
        (
            hello(libraries={"python": "3.11", "distributed": "2"}),
            "other versions of the libraries that carry the work "
            r"\(distributed 2 there and 1 here\)",
        ),
    ],
)
def test_a_machine_with_other_versions_is_refused_with_a_sentence(
    carrier, farm, said, sentence
) -> None:
    carrier.join("a", said)
    until(lambda: states(farm).get("a") == "refused")
    with pytest.raises(FarmError, match=f"no machine that works; refused: a has {sentence}"):
        farm.wait_for_pool("", 0.1)
    work = Work(farm)
    body, _ = work.end()
    assert isinstance(body, FarmError) and not carrier.sent


def test_a_new_machine_is_compared_with_its_pool_before_it_gets_tasks(carrier, farm) -> None:
    asked: list[tuple[str, str]] = []

    def compare(name: str, pool: str) -> str:
        asked.append((name, pool))
        return "admission"

    farm.on_admission = compare
    carrier.join("a")
    until(lambda: states(farm).get("a") == "idle")
    held = Work(farm, owner="placement")
    (first,) = carrier.take()
    carrier.join("b")
    waiting = Work(farm, owner="placement")
    until(lambda: bool(asked))
    time.sleep(0.1)
    assert not carrier.sent, "b is not admitted yet"
    check = Work(farm, b"check", owner="admission", machine="b", urgent=True)
    (sent,) = carrier.take()
    assert (sent.address, sent.message) == ("b", b"check")
    sent.answer(b"slow")
    check.end()
    pool = machine(farm, "a").pool
    farm.move("b", "12 known candidates were 2.00 times slower here")
    farm.release("admission")
    (other,) = carrier.take()
    assert other.address == "b", "the task is for any pool"
    assert (
        machine(farm, "b").pool == f"{pool}-b" and "2.00 times slower" in machine(farm, "b").reason
    )
    first.answer(b"1")
    other.answer(b"2")
    assert held.end()[1] == "a" and waiting.end()[1] == "b"


def test_a_file_is_sent_once_to_a_machine_and_in_parts(
    carrier, farm, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("collage_engine.farm.coordinator.CHUNK_BYTES", 100)
    content = tmp_path / "model"
    content.write_bytes(b"x" * 250)
    carrier.join("a")
    for _ in range(2):
        work = Work(farm, files={"0" * 64: content})
        carrier.take()[0].answer(b"1")
        work.end()
    assert carrier.puts == [("a", 100), ("a", 100), ("a", 50)]


def test_the_machine_of_a_run_waits_for_its_artifact_to_be_fetched(carrier, farm) -> None:
    carrier.join("a")
    run = Work(farm, b"run", owner="run", urgent=True, holds=True)
    other = Work(farm, b"other", owner="other", urgent=True)
    carrier.take()[0].answer(b"1")
    run.end()
    time.sleep(0.1)
    assert not carrier.sent
    fetch = Work(farm, b"fetch", owner="run", machine="a", urgent=True)
    (sent,) = carrier.take()
    assert sent.message == b"fetch"
    sent.answer(b"2")
    fetch.end()
    farm.release("run")
    carrier.take()[0].answer(b"3")
    assert other.end() == (b"3", "a")


def test_what_is_withdrawn_is_cancelled_and_its_machine_is_free(carrier, farm) -> None:
    carrier.join("a")
    Work(farm, b"in flight", owner="x")
    Work(farm, b"waits", owner="x")
    (sent,) = carrier.take()
    farm.withdraw("x")
    work = Work(farm, b"next", owner="y")
    (again,) = carrier.take()
    assert carrier.cancelled == [sent.lease] and again.message == b"next"
    again.answer(b"1")
    work.end()


def test_errors_keep_their_class_and_details(carrier, farm) -> None:
    carrier.join("a")
    work = Work(farm)
    carrier.take()[0].answer(error="no placement", kind="InfeasibleError", details={"pins": [1]})
    body, _ = work.end()
    assert isinstance(body, InfeasibleError) and body.details == {"pins": [1]}
    defect = Work(farm)
    carrier.take()[0].done(b"no JSON")
    body, _ = defect.end()
    assert isinstance(body, FarmError) and "sent no Envelope" in str(body)


def test_everything_ends_when_the_scheduler_is_gone(carrier, farm) -> None:
    carrier.join("a")
    works = [Work(farm), Work(farm)]
    carrier.take()
    farm.closed("the scheduler is gone")
    for work in works:
        body, _ = work.end()
        assert isinstance(body, FarmError) and "the scheduler is gone" in str(body)
    assert farm.is_closed and states(farm) == {"a": "lost"}
    late = Work(farm)
    assert isinstance(late.end()[0], FarmError)


class LosingCoordinator:
    """Loses the machine of a run after it had an answer, or before."""

    def __init__(self, has_answer: bool) -> None:
        self.has_answer = has_answer
        self.withdrawn: list[str] = []

    def submit(self, task: Task) -> None:
        task.began("m1", "tls://m1")
        if self.has_answer:
            run = Run(
                id="r1",
                name="",
                model={},
                target="cpu",
                threads=1,
                toolchains=[],
                candidates=CandidateCounts(),
                placement=None,
                baselines=[],
                winner="tvm",
                pins=[],
                max_abs_error=None,
                max_rel_error=None,
                seconds={},
                provisional=True,
            )
            task.news(News(lease="x", event=Provisional(run=run)), "m1")
        task.done(FarmError("m1 was lost: killed"), "m1")

    def placement(self, owner: str, record: object) -> None:
        pass

    def withdraw(self, owner: str) -> None:
        self.withdrawn.append(owner)

    def release(self, owner: str) -> None:
        pass

    def status(self) -> FarmStatus:
        return FarmStatus(address="fake")

    def wait_for_pool(self, wanted: str, timeout_s: float) -> FarmPool:
        return FarmPool(name="pool")


class LosingConnection:
    """A connection to a farm that is still there, whose only machine is not."""

    lost = False

    def __init__(self, folder: Path, has_answer: bool) -> None:
        self.coordinator = LosingCoordinator(has_answer)
        self.store = Store(folder / "measurements.db")

    def place(self, placing: Placing, out: str | None) -> RunUpdate:
        return placing.run(out)


@pytest.mark.parametrize("has_answer", [True, False])
def test_a_pool_of_one_machine_that_is_lost_ends_the_run_like_a_spent_budget(
    tmp_path, has_answer
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    connection = LosingConnection(tmp_path / "store", has_answer)
    settings = RunSettings(farm="fake")
    jobs = FarmJobs(lambda: connection, settings)  # type: ignore[arg-type, return-value]
    events: list[object] = []
    arguments = {"path": str(model), "shapes": {}, "settings": settings, "out": None}

    def place() -> RunUpdate:
        return jobs.job("run", on_event=events.append, run_id="r1", **arguments)

    (tmp_path / "store").mkdir()
    if not has_answer:
        with pytest.raises(FarmError, match="m1 was lost"):
            place()
        return
    run = place().run
    assert run is not None and not run.provisional and run.ended == "budget"
    assert run.measured_on == "m1" and "there is no artifact of it" in run.warnings[0]
    assert connection.coordinator.withdrawn
