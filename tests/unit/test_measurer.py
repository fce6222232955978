"""The measurer against candidates that crash, hang, lie and eat, in a real child process."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.event import Log, Measured, Progress
from collage_engine.records.graph import ModelRecord
from collage_engine.records.placement import CandidateCounts
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.store import Store
from collage_engine.support.errors import MeasureError, ModelError
from collage_engine.timing.child import OpenRequest
from collage_engine.timing.measurer import (
    GROUPS_AHEAD,
    MeasureCall,
    Measurer,
    group_candidates,
)
from tests.unit.test_store import kept


def candidate(name: str, *nodes: int, key: str = "", **config: str) -> CandidateRecord:
    instance = ToolchainInstance(toolchain=name, config=tuple(sorted(config.items())), threads=2)
    nodes = nodes or (0,)
    return CandidateRecord(
        id=f"{instance.id}:{nodes}",
        instance=instance,
        nodes=nodes,
        label=f"{name}{nodes}",
        key=key or f"{instance.id}:{nodes}",
    )


class Bed:
    """A measurer over the pretended job, its store and its log."""

    def __init__(self, tmp_path, model: str = "m.onnx", **options) -> None:
        self.folder = tmp_path
        self.store = Store(tmp_path / "m.db")
        self.events: list = []
        self.measurer = Measurer(
            OpenRequest(ModelRecord(path=model, sha256="m", nodes=1), str(tmp_path)),
            store=self.store,
            job="tests.support.measure_targets:Job",
            versions={"good": "1.0"},
            **options,
        )

    def measure(self, *candidates: CandidateRecord, **options):
        self.events.clear()
        groups = group_candidates(candidates)
        counts = CandidateCounts(skipped=len({c.key for c in candidates}))
        tell = self.events.append
        call = MeasureCall(self.measurer, groups, tell=tell, counts=counts, **options)
        call.run()
        return call

    def log(self) -> list[tuple[str, str]]:
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(line.split()[0], line.rsplit(" ", 1)[1]) for line in lines]

    def heard(self) -> dict[str, str]:
        return {e.candidate: e.cost.state for e in self.events if isinstance(e, Measured)}


@pytest.fixture
def make_bed(tmp_path):
    with contextlib.ExitStack() as opened:

        def make(*arguments, **options) -> Bed:
            made = Bed(tmp_path, *arguments, **options)
            opened.callback(made.store.close)
            opened.callback(made.measurer.close)
            return made

        yield make


@pytest.fixture
def bed(make_bed):
    return make_bed()


def test_candidates_are_measured_stored_and_found_again(bed, tmp_path):
    candidates = [candidate("good", 1, us="100"), candidate("other", 1, us="300")]
    first = bed.measure(*candidates)
    costs = [first.costs[c.key] for c in candidates]
    assert [c.median_us for c in costs] == pytest.approx([100, 300], rel=0.01)
    assert costs[0].max_rel_error == 1e-6
    assert (first.counts.measured, first.counts.from_store, first.counts.skipped) == (2, 0, 0)
    stored = {m.key: m for m in bed.store.measurements()}
    assert stored[candidates[0].key].versions == {"good": "1.0"}
    again = bed.measure(*candidates)
    assert (again.counts.measured, again.counts.from_store) == (0, 2)
    assert all(c.from_store for c in again.costs.values()) and len(bed.log()) == 2
    assert bed.heard() == {c.id: "measured" for c in candidates}


@pytest.mark.parametrize("own_inputs", [False, True])
def test_what_is_wrong_on_the_users_inputs_alone_is_not_kept(make_bed, own_inputs):
    """Too large a number makes a toolchain refuse, too; another run may bring smaller ones."""
    bed = make_bed(own_inputs=own_inputs)
    refused = [candidate("bad", 1, act=act) for act in ("wrong", "raises-running", "unsupported")]
    assert bed.measure(*refused).counts.invalid == 3
    again = bed.measure(*refused)
    assert again.counts.measured == (2 if own_inputs else 0)


def test_equal_keys_are_measured_once_and_everyone_hears(bed):
    twins = [candidate("good", n, key="same") for n in (1, 2, 3)]
    found = bed.measure(*twins)
    assert found.counts.measured == 1 and len(bed.log()) == 1
    assert bed.heard() == {c.id: "measured" for c in twins}
    progress = [e for e in bed.events if isinstance(e, Progress)]
    assert progress[-1].done == progress[-1].total == 1


def test_kernels_of_the_next_groups_are_compiled_at_once(bed, tmp_path):
    candidates = [candidate("good", n) for n in range(2 * GROUPS_AHEAD + 1)]
    twin = candidate("good", 3, key=candidates[3].key)
    bed.measure(candidates[5])
    bed.measure(*candidates, twin)
    ahead = (tmp_path / "ahead").read_text().splitlines()
    assert [line.count("good") for line in ahead] == [1, GROUPS_AHEAD - 1, GROUPS_AHEAD, 1]


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("dies-compiling", "crashed while compiling: killed by SIGABRT: in prepare"),
        ("dies", "crashed while running by itself: killed by SIGABRT: double free or corruption"),
        ("dies-timed", "crashed while being timed: killed by SIGSEGV: in time"),
    ],
)
def test_a_crash_costs_its_culprit_only(bed, act, reason):
    candidates = [
        candidate("good", 1, us="100"),
        candidate("bad", 1, act=act),
        candidate("other", 1, us="120"),
    ]
    found = bed.measure(*candidates, candidate("good", 2))
    assert found.costs[candidates[1].key].reason.startswith(reason)
    assert found.costs[candidates[0].key].median_us == pytest.approx(100, rel=0.01)
    assert found.costs[candidates[2].key].median_us == pytest.approx(120, rel=0.01)
    assert found.counts.measured == 4 and found.counts.invalid == 1
    assert len(bed.heard()) == 4


def test_one_that_raises_while_it_is_timed_leaves_the_others_their_rounds(bed):
    candidates = [candidate("bad", 1, act="raises-timed"), candidate("good", 1)]
    found = bed.measure(*candidates)
    assert "kernel says no" in found.costs[candidates[0].key].reason
    assert found.costs[candidates[1].key].median_us == pytest.approx(100, rel=0.01)
    assert len(bed.log()) == 2, "nothing is compiled again"


def test_a_child_that_is_killed_from_outside_costs_no_candidate(bed):
    unlucky, other = candidate("good", 1, act="killed-1"), candidate("good", 2)
    found = bed.measure(unlucky, other)
    assert found.costs[unlucky.key].usable and found.costs[other.key].usable
    assert found.counts.invalid == 0 and len(bed.log()) == 3


def test_what_is_killed_again_and_again_is_left_out_of_this_run_only(bed):
    unlucky, other = candidate("good", 1, act="killed-2"), candidate("good", 2)
    found = bed.measure(unlucky, other)
    assert found.costs[unlucky.key].reason.startswith("crashed while running by itself: killed by")
    assert found.costs[other.key].usable
    assert bed.measure(unlucky).costs[unlucky.key].usable


def test_a_toolchain_that_crashes_twice_is_out_of_the_run(bed):
    bad = [candidate("bad", n, act="dies") for n in (1, 2, 3)]
    found = bed.measure(*bad, candidate("good", 3))
    assert len(bed.log()) == 3, "the third is not even compiled"
    reason = found.costs[bad[2].key].reason
    assert "bad is out of this run" in reason and "killed by SIGABRT" in reason
    assert found.costs[candidate("good", 3).key].usable
    assert kept(bed.store, bad[1].key).state == "invalid" and kept(bed.store, bad[2].key) is None
    assert bed.measurer.faults.left_out.keys() == {"bad"}


def test_a_hanging_candidate_is_killed_and_the_rest_goes_on(make_bed):
    bed = make_bed(candidate_limit_s=0.5)
    hanging = candidate("slow", 1, act="sleeps")
    found = bed.measure(candidate("good", 1), hanging, candidate("good", 2))
    assert found.costs[hanging.key].reason == "gave no answer within 0.5 s while compiling"
    assert found.counts.invalid == 1 and found.counts.measured == 3


def test_budget_leaves_the_rest_unknown_in_the_callers_order(bed):
    slow = [candidate("slow", n, act="sleeps", s="0.3") for n in range(20)]
    assert bed.measure(candidate("good", 99)).counts.measured == 1, (
        "the child has the model open now"
    )
    found = bed.measure(*slow, deadline=time.monotonic() + 3.0)
    assert 1 <= found.counts.measured < 20 and found.counts.skipped == 20 - found.counts.measured
    assert list(found.costs) == [c.key for c in slow[: found.counts.measured]]
    assert bed.measure(*slow[:1]).counts.from_store == 1
    assert bed.measure(slow[-1], deadline=time.monotonic() - 1).counts.skipped == 1


def test_a_candidate_caught_by_the_deadline_is_unknown_not_invalid(bed, monkeypatch):
    good = candidate("good", 99)
    assert bed.measure(good).counts.measured == 1, "the child has the model open now"
    monkeypatch.setattr("collage_engine.timing.measurer.GRACE_S", 0.3)
    found = bed.measure(candidate("slow", act="sleeps"), deadline=time.monotonic() + 0.3)
    assert found.costs == {} and found.counts.skipped == 1
    assert bed.store.info().measurements == 1


def test_a_candidate_that_hangs_leaves_half_of_a_short_time_to_others(bed, monkeypatch):
    monkeypatch.setattr("collage_engine.timing.measurer.LEAST_S", 0.2)
    slow, good = candidate("slow", 1, act="sleeps"), candidate("good", 2)
    assert bed.measure(candidate("good", 99)).counts.measured == 1, (
        "the child has the model open now"
    )
    began = time.monotonic()
    found = bed.measure(slow, good, deadline=began + 8)
    assert time.monotonic() - began < 40, "it sleeps for a minute"
    assert "gave no answer within" in found.costs[slow.key].reason
    assert found.costs[good.key].usable
    assert kept(bed.store, slow.key) is None, "it is not known what a longer wait would say"


def test_a_child_that_dies_while_it_opens_the_model_is_started_again(make_bed):
    bed = make_bed("crash-once.onnx")
    one = candidate("good")
    assert bed.measure(one).costs[one.key].usable


def test_a_child_that_stands_still_while_it_opens_the_model_is_waited_for_no_longer_than_the_rest(
    make_bed, monkeypatch
):
    monkeypatch.setattr("collage_engine.timing.measurer.GRACE_S", 0.3)
    bed = make_bed("stopped.onnx")
    one, began = candidate("good"), time.monotonic()
    found = bed.measure(one, deadline=began + 1.0)
    assert 1.0 < time.monotonic() - began < 60.0
    assert found.costs == {} and found.counts.skipped == 1 and not found.stopped
    (told,) = [event for event in bed.events if isinstance(event, Log)]
    assert told.level == "info" and "did not open the model within 1 s" in told.text
    assert kept(bed.store, one.key) is None


def test_a_cancel_waits_for_no_candidate_and_keeps_what_was_measured(bed):
    cancel = threading.Event()
    good, hanging = candidate("good", 1), candidate("slow", 2, act="sleeps")
    cancelled: list[float] = []

    def when_one_is_there() -> None:
        store = Store(bed.store.path)
        until = time.monotonic() + 60
        while kept(store, good.key) is None and time.monotonic() < until:
            time.sleep(0.05)
        cancelled.append(time.monotonic())
        cancel.set()
        store.close()

    watcher = threading.Thread(target=when_one_is_there)
    watcher.start()
    found = bed.measure(good, hanging, cancel=cancel)
    assert cancelled, "nothing hung"
    assert time.monotonic() - cancelled[0] < 40, "it sleeps for a minute"
    watcher.join()
    assert found.stopped and list(found.costs) == [good.key] and found.counts.skipped == 1
    assert kept(bed.store, good.key) is not None and kept(bed.store, hanging.key) is None
    assert bed.measure(candidate("good", 3)).counts.measured == 1, "a new child takes over"


def test_a_model_that_cannot_be_opened_says_so(make_bed):
    bed = make_bed("broken.onnx")
    with pytest.raises(ModelError, match=r"broken\.onnx is no ONNX file"):
        bed.measure(candidate("good"))
    bed = make_bed("crash.onnx")
    with pytest.raises(MeasureError, match=r"crash\.onnx could not be opened.*SIGABRT"):
        bed.measure(candidate("good"))
