"""Tuning without TVM: what is worth it, the budget, records, and children that crash or hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from collage_engine.candidates.catalog import CandidateCatalog
from collage_engine.kernels.choices import Choices, digest_of, read_table, write_table
from collage_engine.kernels.tuner import climb
from collage_engine.machine.run_control import RunControl, StageReport
from collage_engine.model.importer import ImportedModel
from collage_engine.partition.rules import CandidateSource
from collage_engine.planning.search_inputs import SearchInputs, make_placement
from collage_engine.records.candidate import (
    Candidate,
    CandidateRecord,
    Cost,
    CostTable,
    table_of,
)
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance, TuneRecord, TuneTask
from collage_engine.store.keys import KeyContext
from collage_engine.store.store import Store, TuningRecords
from collage_engine.support.errors import Cancelled, ToolchainError
from collage_engine.timing import tuning as module
from collage_engine.timing.measurer import CandidateGroup
from collage_engine.timing.tuning import (
    Tuning,
    is_plain,
    promising,
    put_tables_back,
    ranked,
    tables_of,
    tuned_instance,
)
from collage_engine.timing.tuning import tunable as tunable_of
from tests.support import tuning_targets
from tests.support.candidates import inputs_of
from tests.support.graphs import GraphBuilder, chain, operator, record_of
from tests.support.imported import imported_model
from tests.support.runs import run_record

TVM = ToolchainInstance(toolchain="tvm")
OTHER = ToolchainInstance(toolchain="onnxruntime")
NODES = 4


def record(instance: ToolchainInstance, nodes: tuple[int, ...], us: float) -> CandidateRecord:
    name = f"{instance.id}:{'-'.join(map(str, nodes))}"
    cost = Cost(state="measured", median_us=us, low_us=us, high_us=us)
    return CandidateRecord(
        id=name,
        instance=instance,
        nodes=nodes,
        label=name,
        key=f"key {name}",
        cost=cost,
    )


def candidates_of(rows: Sequence[CandidateRecord], budget_s: float = 0.0) -> SearchInputs:
    """Candidates of a chain of four operators."""
    settings = RunSettings(tune_budget_s=budget_s, threads=1)
    return inputs_of(chain(*["nn.relu"] * NODES), list(rows), settings=settings)


def singles(us: float, other_us: float) -> list[CandidateRecord]:
    found = [record(TVM, (n,), us) for n in range(NODES)]
    return found + [record(OTHER, (n,), other_us) for n in range(NODES)]


def task(workload: str, weight: float = 1.0) -> TuneTask:
    return TuneTask(workload=workload, weight=weight)


def done(workload: str, gain: float = 0.0, complete: bool = True) -> TuneRecord:
    return TuneRecord(
        workload=workload,
        toolchain="tvm",
        choice={"block": 2} if gain else {},
        default_us=100.0,
        tuned_us=100.0 * (1 - gain),
        complete=complete,
        tried=("block=1",),
    )


# What is worth tuning ------------------------------------------------------------------------


def chosen_of(rows: list[CandidateRecord]) -> list[str]:
    tunable = {row.id for row in rows if row.instance == TVM and row.cost.usable}
    return [c.id for c in promising(candidates_of(rows), tunable)]


def test_what_could_win_once_tuned_is_chosen_and_the_rest_is_not():
    near, far = record(TVM, (0,), 110.0), record(TVM, (1,), 500.0)
    rest = [record(TVM, (2,), 150.0), record(OTHER, (3,), 1.0)]
    candidates = [near, far, *rest, *(record(OTHER, (n,), 100.0) for n in range(3))]
    # 110 could become 77; 500 at best 350, and 150 at best 105.
    assert chosen_of(candidates) == [near.id]


def test_workloads_are_ranked_by_their_time_in_all_places():
    candidates = singles(100.0, 150.0)
    tasks = {c.key: [task("often")] for c in candidates[:3]}
    tasks[candidates[3].key] = [task("once", weight=2.0), task("finished", weight=2.0)]
    known = {"finished": done("finished", 0.1)}
    order = ranked(candidates[:NODES], table_of(candidates), tasks, known)
    assert [t.workload for t, _ in order] == ["often", "once"]
    assert order[0][1] == pytest.approx(300.0) and order[1][1] == pytest.approx(50.0)


def test_only_plain_instances_are_tuned():
    gpu = msgspec.structs.replace(TVM, device="cuda:0", architecture="sm_90a")
    reduced = msgspec.structs.replace(TVM, config=(("precision", "bf16"),), precision="bf16")
    assert is_plain(TVM)
    assert not any(map(is_plain, (tuned_instance(TVM, "x"), gpu, reduced)))


# Climbing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A plan of two parameters."""

    x: int = 0
    y: int = 0

    @property
    def name(self) -> str:
        return f"{self.x},{self.y}"


def around(plan: Point) -> list[Point]:
    x, y = plan.x, plan.y
    return [Point(x + dx, y + dy) for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))]


def bowl(plan: Point) -> float:
    return 10.0 + (plan.x - 3) ** 2 + (plan.y + 2) ** 2


def test_climbing_finds_the_bottom_and_tries_nothing_twice():
    asked: list[str] = []

    def compare(a: Point, b: Point) -> float:
        asked.append(a.name)
        return bowl(a) / bowl(b)

    found = climb(Point(), around, compare)
    assert found.best == Point(3, -2) and found.complete
    assert len(asked) == len(set(asked)) == found.tried
    assert found.ratio == pytest.approx(bowl(found.best) / bowl(found.start))


# Tables and records ----------------------------------------------------------------------------


def test_a_table_is_found_by_its_hash(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path))
    assert read_table("") == {} and write_table({}) == ""
    first, second = {"conv a": {"block": 2}}, {"conv a": {"block": 3}}
    name, newer = write_table(first), write_table(second)
    assert name == digest_of(first) != newer
    assert read_table(name) == first and read_table(newer) == second
    choices = Choices(read_table(name))
    assert choices.plan("conv a", {"n": 1}) == {"block": 2}
    assert choices.plan("conv b", {"n": 2}) == {}
    assert choices.asked == {"conv a": {"n": 1}, "conv b": {"n": 2}}


def test_a_run_keeps_the_tables_it_was_lowered_with(tmp_path, monkeypatch):
    """An artifact exported again has the measured kernels, whatever was tuned since, and where."""
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "here"))
    table = {"conv a": {"block": 2}}
    digest = write_table(table)
    graph = record_of(operator(0, "nn.relu"))
    tuned = record(tuned_instance(TVM, digest), (0,), 1.0)
    placement = make_placement(graph, [tuned], table_of([tuned]), 1.0)
    (part,) = placement.partitions
    assert part.tuning == digest and part.instance == tuned.instance.id
    write_table({"conv a": {"block": 3}})  # what was found later
    run = run_record(
        placement=placement,
        tables=tables_of(placement),
    )
    kept = msgspec.json.decode(msgspec.json.encode(run), type=Run)
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "another machine"))
    put_tables_back(kept)
    assert read_table(part.tuning) == table
    kept.tables[digest]["conv a"]["block"] = 4
    with pytest.raises(ToolchainError, match="run r1 were changed"):
        put_tables_back(kept)


def context(**changes: Any) -> KeyContext:
    return KeyContext(
        tvm_version="1", target="cpu", fingerprint="here", versions={"tvm": "1"}, **changes
    )


def test_records_hold_for_their_versions_and_survive(tmp_path):
    records = TuningRecords(Store(tmp_path / "s.db"), context(), "tvm")
    assert records.records(["w"]) == {} and not records.any()
    known = [task("w"), msgspec.structs.replace(task("k"), description={"rule": "p"})]
    records.put_tasks("key", known)
    assert not records.any(), "a list of kernels is no finding"
    records.put(done("w", 0.2))
    assert records.any()
    again = TuningRecords(Store(tmp_path / "s.db"), context(), "tvm")
    assert again.records(["w", "x"]) == {"w": done("w", 0.2)}
    assert again.tasks(["key"])["key"] == known
    other = TuningRecords(Store(tmp_path / "s.db"), context(sources={"tvm": "new"}), "tvm")
    assert other.records(["w"]) == {} and other.tasks(["key"]) == {} and not other.any()
    store = Store(tmp_path / "s.db")
    store.clear()
    assert not TuningRecords(store, context(), "tvm").any()


# The stage -------------------------------------------------------------------------------------


@dataclass
class Bench:
    """A workspace, a catalog and a measurer in one, of candidates whose costs are scripted."""

    store: Store
    measured: list[Candidate] = field(default_factory=list)
    path: str = "model.onnx"
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    model: ImportedModel = field(default_factory=lambda: imported_model(GraphBuilder().build()))

    def with_stored_costs(self, candidates: list[Candidate], costs: CostTable) -> CostTable:
        return costs

    def begin(self, candidates: list[Candidate], costs: CostTable) -> None:
        self.measured += candidates

    def measure_batch(self, groups: list[CandidateGroup], deadline: float) -> dict[str, Cost]:
        cost = Cost(state="measured", median_us=80.0, low_us=80.0, high_us=80.0)
        return {c.key: cost for group in groups for c in group}


def catalog_of(*instances: ToolchainInstance) -> CandidateCatalog:
    """A catalog of these instances, of which nothing is enumerated."""
    return CandidateCatalog(
        states=(),
        sources=tuple(CandidateSource(i, None, lambda index: None) for i in instances),
        candidates=(),
        costs=CostTable(),
        without_candidates={},
        keys=context(),
    )


def tune(
    store: Store,
    job: type,
    budget_s: float,
    candidates: list[CandidateRecord] | None = None,
    control: RunControl | None = None,
) -> tuple[Tuning, Any, list[CandidateRecord], Bench, list[str]]:
    bench: Any = Bench(store)
    control = control or RunControl()
    tuning = Tuning(
        bench,
        catalog_of(TVM, OTHER),
        candidates_of(candidates or singles(100.0, 90.0), budget_s),
        bench,
        control,
        StageReport("tune", control.emit),
        TVM,
        budget_s,
        job=f"{tuning_targets.__name__}:{job.__name__}",
    )
    tuning.run()
    return tuning, tuning.catalog, tuning.inputs.records(), bench, control.warnings


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path))
    return Store(tmp_path / "s.db")


def test_what_could_win_is_tuned_offered_and_measured_beside_itself(store):
    tuning, catalog, found, _, told = tune(store, tuning_targets.Scripted, 30.0)
    assert not told
    tuned = [r for r in found if r.instance.id == "tvm[tuned=yes]"]
    assert [r.nodes for r in tuned] == [(n,) for n in range(NODES)]
    assert all(r.cost.median_us == 80.0 for r in tuned)
    assert len({r.id for r in found}) == len(found) == 3 * NODES, "the untuned stay"
    assert [o.instance.id for o in catalog.sources] == ["tvm", "onnxruntime", "tvm[tuned=yes]"]
    assert read_table(tuned[0].instance.tuning) == {
        "kernel 0": {"block": 2},
        "kernel 1": {"block": 2},
    }
    counts = tuning.counts
    assert (counts.workloads, counts.tuned, counts.improved, counts.candidates) == (2, 2, 2, NODES)
    assert counts.seconds < 25.0, "nothing was left to do, so it ended before its budget"


def test_a_later_run_uses_the_records_without_a_budget(store):
    gpu = msgspec.structs.replace(TVM, device="cuda:0", architecture="sm_90a")
    others = [gpu, OTHER, tuned_instance(TVM, "x")]
    assert tunable_of(store, catalog_of(*others), RunSettings(tune_budget_s=9.0)) is None
    assert tunable_of(store, catalog_of(*others, TVM), RunSettings()) is None
    tune(store, tuning_targets.Scripted, 30.0)
    assert tunable_of(store, catalog_of(*others, TVM), RunSettings()) == TVM
    later, _, found, _, _ = tune(store, tuning_targets.AlwaysCrashing, 0.0)
    assert sum(r.instance.id == "tvm[tuned=yes]" for r in found) == NODES
    assert later.counts.tuned == 0 and later.counts.from_store == 2


def test_what_cannot_matter_is_not_even_looked_at(store):
    tuning, catalog, found, bench, _ = tune(
        store, tuning_targets.AlwaysCrashing, 30.0, singles(300.0, 90.0)
    )
    assert tuning.counts.tuned == 0 and not bench.measured and len(found) == 2 * NODES
    assert len(catalog.sources) == 2


def test_a_search_that_crashes_keeps_what_it_found_and_is_not_repeated(store):
    _, _, found, _, _ = tune(store, tuning_targets.Crashing, 60.0)
    known = TuningRecords(store, context(), "tvm").records(["kernel 0", "kernel 1"])
    assert known["kernel 1"].complete and "SIGABRT" in (known["kernel 1"].reason or "")
    assert known["kernel 1"].choice == known["kernel 0"].choice == {"block": 2}
    assert known["kernel 0"].reason is None
    assert sum(r.instance.id == "tvm[tuned=yes]" for r in found) == NODES


def test_a_search_that_hangs_is_ended(store, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 1.5)
    tune(store, tuning_targets.Hanging, 8.0)
    known = TuningRecords(store, context(), "tvm").records(["kernel 0", "kernel 1"])
    assert known["kernel 1"].complete and not known["kernel 1"].choice
    assert known["kernel 0"].choice == {"block": 2}


def test_a_cancel_is_answered_while_a_variant_hangs(store):
    begun = time.monotonic()
    control = RunControl()
    threading.Timer(3.0, control.cancelled.set).start()
    with pytest.raises(Cancelled):
        tune(store, tuning_targets.Hanging, 600.0, control=control)
    assert time.monotonic() - begun < 100.0, "the variant hangs for ten minutes"
    kept = TuningRecords(store, context(), "tvm").records(["kernel 0"])
    assert not kept or kept["kernel 0"].choice, "what was found before is kept"
