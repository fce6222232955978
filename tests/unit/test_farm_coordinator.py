"""The queue of a farm: one task a machine, failures, drift, pools; without any network."""

from __future__ import annotations

import hashlib
import io
import queue
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from collage_engine.farm.coordinator import Coordinator, FarmSettings, Task
from collage_engine.farm.farms import WAITS, FarmJobs
from collage_engine.farm.messages import (
    ExportRequest,
    Hello,
    News,
    RunAnswer,
    Update,
    encode,
    read,
)
from collage_engine.records.errors import (
    ArtifactError,
    Cancelled,
    CollageError,
    FarmError,
    InfeasibleError,
)
from collage_engine.records.event import Log, Provisional
from collage_engine.records.jobs import ExportJob, RunJob
from collage_engine.records.placement import CandidateCounts, Partition, Placement, Run
from collage_engine.records.results import RunUpdate
from collage_engine.records.settings import RunSettings
from collage_engine.store.store import Store
from tests.support.farm_carrier import ENGINE, LIBRARIES, FakeCarrier, Sent, hello

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


def test_a_task_that_a_machine_has_cancelled_by_itself_is_done_by_another_one(
    carrier, farm
) -> None:
    carrier.join("a")
    carrier.join("b")
    work = Work(farm)
    for _ in range(2):
        (sent,) = carrier.take()
        sent.answer(error="cancelled; what was measured is kept", kind="Cancelled")
    body, _ = work.end()
    assert isinstance(body, FarmError) and "has ended its task" in str(body)


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
        assert probe.name == "probe" and "20.0 % slower" in machine(farm, "a").reason, pause
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


def test_machines_that_are_still_joining_are_waited_for_until_the_user_stops_that(
    carrier, farm, monkeypatch
) -> None:
    """A machine that compiles its toolchains joins for longer than one is waited for else."""
    submit = carrier.submit

    def keep_hello(address, name, *rest) -> None:
        kept.append((address, name, *rest)) if name == "hello" else submit(address, name, *rest)

    kept: list[tuple] = []
    carrier.submit = keep_hello
    carrier.join("a")
    until(lambda: bool(kept))
    ends = time.monotonic() + 0.5
    with pytest.raises(Cancelled):
        farm.wait_for_pool("", 0.05, stopped=lambda: time.monotonic() > ends)
    assert time.monotonic() >= ends
    threading.Timer(0.5, lambda: submit(*kept[0])).start()
    assert farm.wait_for_pool("", 0.05).machines == ("a",)


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


def test_only_machines_that_measure_alike_add_to_the_costs_of_another_one(carrier, farm) -> None:
    for name in "abc":
        carrier.join(name)
    until(lambda: list(states(farm).values()) == ["idle"] * 3)
    work = Work(farm, like="a", machine="b")
    time.sleep(0.1)
    assert not carrier.sent and not farm.are_alike("a", "b") and farm.are_alike("a", "a")
    farm.alike("c", "a")
    farm.alike("c", "b")
    (sent,) = carrier.take()
    assert sent.address == "b" and farm.are_alike("b", "a"), "both are like c"
    sent.answer(b"1")
    assert work.end() == (b"1", "b")
    carrier.leave("b")
    until(lambda: states(farm)["b"] == "lost")
    carrier.join("b")
    until(lambda: states(farm)["b"] == "idle")
    assert not farm.are_alike("a", "b"), "it may be another machine now"
    assert farm.are_alike("a", "c")


def test_what_one_machine_has_not_done_is_given_back_when_no_other_has_time(carrier, farm) -> None:
    """The machine of the run works; the run itself measures what is given back to it."""
    carrier.join("a")
    run = Work(farm, b"run", owner="run", urgent=True)
    (of_run,) = carrier.take()
    carrier.join("b")
    farm.alike("a", "b")
    group = Work(farm, like="a", checked=True, patience_s=0.1)
    (sent,) = carrier.take()
    assert sent.address == "b"
    sent.answer(b"1", drift=0.05)
    body, _ = group.end()
    assert isinstance(body, FarmError) and "no other machine had time" in str(body)
    of_run.answer(b"2")
    run.end()


def test_only_the_machine_itself_is_asked_again_what_it_is(carrier, farm) -> None:
    """The child that looks for its toolchains may be killed, as every other process."""
    carrier.join("a", hello(cores=8))
    until(lambda: states(farm).get("a") == "idle")
    submit, asked = carrier.submit, []

    def killed_once(address: str, name: str, *rest: Any) -> None:
        asked.append((address, name))
        if len(asked) == 1:
            Sent(address, name, *rest).answer(error="killed", kind="FarmError", again=True)
        else:
            submit(address, name, *rest)

    carrier.submit = killed_once
    carrier.join("b", hello(cores=2))
    until(lambda: states(farm).get("b") == "idle")
    assert asked == [("b", "hello")] * 2 and machine(farm, "b").cores == 2


def test_a_machine_that_works_for_another_coordinator_is_waited_for(
    carrier, farm, monkeypatch
) -> None:
    monkeypatch.setattr("collage_engine.farm.coordinator.JOINING_S", 0.1)
    submit, kept = carrier.submit, []
    carrier.submit = lambda *sent: kept.append(sent)
    carrier.join("a")
    carrier.join("b")
    until(lambda: len(kept) == 2)
    farm.news(encode(News(lease=kept[1][2])))  # it has begun, and does not end
    until(lambda: states(farm)["b"] == "lost")
    assert states(farm)["a"] == "joining"
    submit(*kept[0])
    until(lambda: states(farm)["a"] == "idle")


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


def provisional_run() -> Run:
    part = Partition(
        id="p0",
        candidate="onednn:0",
        toolchain="onednn",
        config={},
        nodes=(0,),
        onnx_nodes=("conv",),
        estimated_us=1.0,
    )
    return Run(
        id="r1",
        name="",
        model={},
        target="cpu",
        threads=1,
        toolchains=[],
        candidates=CandidateCounts(),
        placement=Placement(partitions=(part,), estimated_us=1.0),
        baselines=[],
        winner="onednn",
        pins=[],
        max_abs_error=None,
        max_rel_error=None,
        seconds={},
        provisional=True,
    )


def artifact_archive(folder: Path) -> bytes:
    """An artifact as a member packs it."""
    packed = io.BytesIO()
    (folder / "manifest.json").write_text("{}")
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder / "manifest.json", arcname="./manifest.json")
    return packed.getvalue()


class FarmOf(FakeCarrier):
    """Machines of one kind, each of which is lost under the run after it said what it had."""

    def __init__(self, names: str, archive: bytes, has_answer: bool, finishes: bool) -> None:
        super().__init__()
        self.answers = {"run": self.run, "export": self.export, "fetch": self.fetch}
        self.names, self.archive = names, archive
        self.has_answer, self.finishes = has_answer, finishes
        self.exported_by = ""
        self.asked: list[str] = []

    def run(self, sent: Sent) -> None:
        self.asked.append(sent.address)
        assert self.listener is not None
        if self.has_answer:
            news = News(lease=sent.lease, event=Provisional(run=provisional_run()))
            self.listener.news(encode(news))
        if self.finishes:
            run = msgspec.structs.replace(provisional_run(), provisional=False)
            sent.answer(encode(self.packed(Update(run=run))))
        else:
            self.leave(sent.address)

    def packed(self, update: Update) -> RunAnswer:
        digest = hashlib.sha256(self.archive).hexdigest()
        return RunAnswer(update=update, artifact=digest, artifact_bytes=len(self.archive))

    def export(self, sent: Sent) -> None:
        request = read(sent.message, ExportRequest)
        assert request.run.winner == "onednn"
        self.exported_by = sent.address
        sent.answer(encode(self.packed(Update())))

    def fetch(self, sent: Sent) -> None:
        if self.exported_by:
            sent.answer(self.archive)
        else:
            self.leave(sent.address)


class Exporter:
    """Stands in for the child that builds an artifact here."""

    def __init__(self, name: str) -> None:
        pass

    def job(self, job: ExportJob, **_: object) -> None:
        assert job.run.placement is not None and job.out is not None
        Path(job.out).mkdir()
        (Path(job.out) / "manifest.json").write_text("{}")

    def close(self) -> None:
        pass


@dataclass
class LosingFarm:
    """A farm whose machines are lost, and an engine that places a model on it."""

    folder: Path
    carrier: FarmOf
    monkeypatch: pytest.MonkeyPatch
    events: list[object] = field(default_factory=list)
    lost = False

    def place(self, here: Hello, out: str | None) -> Run:
        model = self.folder / "model.onnx"
        model.write_bytes(b"model")
        self.store = Store(self.folder / "measurements.db")
        self.coordinator = Coordinator(self.carrier, ENGINE, LIBRARIES, QUICK)
        for name in self.carrier.names:
            self.carrier.join(name)
        until(lambda: set(states(self.coordinator).values()) == {"idle"})
        self.monkeypatch.setattr("collage_engine.farm.farms.this_machine", lambda env: here)
        self.monkeypatch.setattr("collage_engine.farm.farms.PipelineClient", Exporter)
        connection: Any = SimpleNamespace(
            coordinator=self.coordinator,
            store=self.store,
            lost=False,
            place=lambda placing, out: placing.run(out),
        )
        settings = RunSettings(farm="fake")
        try:
            job = RunJob(path=str(model), shapes={}, settings=settings, out=out, run_id="r1")
            update = FarmJobs(lambda: connection, settings).job(job, on_event=self.events.append)
        finally:
            self.coordinator.close()
        assert update.run is not None
        return update.run


@pytest.fixture
def losing(tmp_path, monkeypatch):
    def make(names: str, *, has_answer: bool = True, finishes: bool = False) -> LosingFarm:
        archive = artifact_archive(tmp_path)
        return LosingFarm(tmp_path, FarmOf(names, archive, has_answer, finishes), monkeypatch)

    return make


def test_a_pool_that_is_lost_ends_the_run_like_a_spent_budget(losing, tmp_path) -> None:
    """This machine is of the pool's kind, so that it can build what the run had found."""
    out = tmp_path / "out"
    farm = losing("a")
    run = farm.place(hello(name="here", processor="Zen 4, 1 core", cores=1), str(out))
    assert not run.provisional and run.ended == "budget" and run.measured_on == "a"
    assert run.artifact == str(out) and (out / "manifest.json").is_file()
    (warning,) = run.warnings
    assert "no machine of the pool" in warning and "this is the best placement until" in warning
    assert "this machine, which is of the pool's kind, has built its artifact" in warning
    assert [event for event in farm.events if isinstance(event, Log)][-1].text == warning


@pytest.mark.parametrize(
    ("here", "why"),
    [
        (hello(processor="Apple M4, 10 cores"), "another processor, Apple M4"),
        (hello(compiler="other"), "compiles for another target"),
        (hello(toolchains={"tvm": "0.27"}), "onednn is missing here instead of 3"),
        (hello(adapters={"onednn": "x"}), "adapter of onednn has other sources"),
    ],
)
def test_what_only_the_lost_pool_could_build_is_kept_without_an_artifact(
    losing, tmp_path, here, why
) -> None:
    out = tmp_path / "out"
    run = losing("a").place(here, str(out))
    assert run.placement is not None and run.ended == "budget" and run.artifact is None
    assert why in run.warnings[0] and "goes on from the stored costs" in run.warnings[0]
    assert not out.exists()


def test_an_artifact_that_nobody_asked_for_is_not_missed(losing) -> None:
    run = losing("a").place(hello(), None)
    assert "artifact" not in run.warnings[0] and run.artifact is None


def test_another_machine_of_the_pool_builds_what_two_lost_ones_had_found(losing, tmp_path) -> None:
    farm = losing("abc")
    run = farm.place(hello(processor="another"), str(tmp_path / "out"))
    assert len(farm.carrier.asked) == 2 and run.ended == "budget"
    assert farm.carrier.exported_by not in farm.carrier.asked
    assert f"{farm.carrier.exported_by} has built its artifact" in run.warnings[0]
    assert run.artifact and (tmp_path / "out" / "manifest.json").read_text() == "{}"


def test_a_run_whose_artifact_was_not_fetched_in_time_has_it_built_again(losing, tmp_path) -> None:
    farm = losing("ab", finishes=True)
    run = farm.place(hello(processor="another"), str(tmp_path / "out"))
    assert run.ended == "finished" and run.artifact == str(tmp_path / "out")
    assert len(farm.carrier.asked) == 1 and farm.carrier.exported_by not in farm.carrier.asked
    assert "the artifact was not sent whole" in run.warnings[0]


@pytest.mark.parametrize("finishes", [False, True], ids=["built by another", "sent"])
def test_a_run_whose_artifact_cannot_be_written_here_is_kept(losing, tmp_path, finishes) -> None:
    farm = losing("abc", finishes=finishes)
    farm.carrier.exported_by = "nobody" if finishes else ""  # what was built is sent at once
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="cannot be written"):
        farm.place(hello(processor="another"), str(tmp_path / "file" / "out"))
    (run,) = [event.run for event in farm.events if isinstance(event, RunUpdate) and event.run]
    assert run.placement is not None and run.artifact is None


def test_a_lost_pool_without_an_answer_is_an_error(losing) -> None:
    with pytest.raises(FarmError, match="no machine of the pool"):
        losing("a", has_answer=False).place(hello(), None)


def test_a_run_that_waits_for_a_machine_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("collage_engine.farm.farms.SAYS_S", 0.05)
    monkeypatch.setattr("collage_engine.farm.farms.JOIN_S", 0.4)
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    connection: Any = SimpleNamespace(
        coordinator=Coordinator(FakeCarrier(), ENGINE, LIBRARIES, QUICK), lost=False
    )
    events: list[Any] = []
    settings = RunSettings(farm="fake")
    job = RunJob(path=str(model), shapes={}, settings=settings, run_id="r1")
    try:
        with pytest.raises(FarmError, match="has no machine that works"):
            FarmJobs(lambda: connection, settings).job(job, on_event=events.append)
    finally:
        connection.coordinator.close()
    assert [event.text for event in events] == [WAITS]


def test_a_scheduler_that_is_back_at_once_is_tried_again(losing, tmp_path, monkeypatch) -> None:
    """The next connection is a new one, which nothing is wrong with."""
    monkeypatch.setattr("collage_engine.farm.farms.RECONNECT_S", (0.01,))
    gone = SimpleNamespace(
        coordinator=Coordinator(FakeCarrier(), ENGINE, LIBRARIES, QUICK), lost=False
    )

    def place(placing: object, out: str | None) -> RunUpdate:
        gone.lost = True
        raise FarmError("the scheduler is gone")

    gone.place, gone.store = place, None
    gone.coordinator.carrier.join("a")
    run = RunUpdate(run=provisional_run())
    back = SimpleNamespace(
        coordinator=gone.coordinator, lost=False, store=None, place=lambda placing, out: run
    )
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    settings = RunSettings(farm="fake")
    events: list[Any] = []
    jobs: Any = FarmJobs(lambda: back if gone.lost else gone, settings)  # type: ignore
    job = RunJob(path=str(model), shapes={}, settings=settings, run_id="r1")
    try:
        assert jobs.job(job, on_event=events.append) is run
    finally:
        gone.coordinator.close()
    assert "the scheduler is gone; trying again in 0 s" in events[0].text
