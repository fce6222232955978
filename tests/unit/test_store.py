"""The measurement store: keeps, merges, is shared, and says clearly what is wrong with it."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from collage_engine.records.candidate import Cost, invalid
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.versions import STORE_EXPORT, STORE_SCHEMA
from collage_engine.store import store as module
from collage_engine.store.store import Measurement, Store, copy_in_memory
from collage_engine.support.errors import MeasureError
from tests.support.command import python
from tests.support.read_only_folder import read_only

INSTANCE = ToolchainInstance(toolchain="onednn", config=(("a", "b"),), threads=2)


def measured(key: str, us: float, when: str = "2026-01-02T03:04:05+00:00") -> Measurement:
    cost = Cost(
        state="measured",
        median_us=us,
        low_us=us - 1,
        high_us=us + 1,
        count=3,
        measured_at=when,
    )
    return Measurement(
        key=key,
        cost=cost,
        label="conv+relu",
        instance=INSTANCE,
        device="a cpu",
        versions={"onednn": "3.2"},
        model="m.onnx",
    )


def kept(store: Store, key: str, model: str = "") -> Cost | None:
    return store.get_many([key], model).get(key)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "deep" / "m.db") as made:
        yield made


def test_keeps_costs_whole_and_marks_where_they_come_from(store):
    assert kept(store, "a") is None
    store.put(measured("a", 5.0))
    store.put(Measurement(key="b", cost=invalid("wrong numbers"), instance=INSTANCE))
    with Store(store.path) as again:
        found = again.get_many(["b", "a", "nothing"])
        assert set(found) == {"a", "b"}
        assert found["a"].high_us == 6.0 and found["a"].from_store
        assert found["b"].state == "invalid" and found["b"].reason == "wrong numbers"
        assert found["b"].measured_at is not None
        held = {m.key: m for m in again.measurements()}
        assert held["a"].instance == INSTANCE and held["a"].versions == {"onednn": "3.2"}
        assert not held["a"].cost.from_store


def test_replaces_and_counts(store):
    store.put(measured("a", 5.0))
    store.put(measured("a", 7.0))
    store.put_constant("peaks", {"float32": 1e11})
    info = store.info()
    assert (info.measurements, info.constants, info.invalid) == (1, 1, 0)
    assert info.toolchains == {"onednn": 1} and info.devices == {"a cpu": 1}
    assert info.bytes > 0 and info.newest == "2026-01-02T03:04:05+00:00"
    assert kept(store, "a").median_us == 7.0
    assert store.clear() == 1
    assert store.info().measurements == 0 and store.constant("peaks") is None


def test_export_and_merge_keep_the_newer(store, tmp_path):
    store.put_many([measured("a", 1, "2026-01-01"), measured("b", 2, "2026-01-05")])
    assert store.export(tmp_path / "all.jsonl") == 2
    with Store(tmp_path / "other.db") as other:
        other.put_many([measured("a", 9, "2026-01-03"), measured("b", 9, "2026-01-03")])
        assert other.import_(tmp_path / "all.jsonl") == 1
        assert [kept(other, k).median_us for k in "ab"] == [9.0, 2.0]
        assert other.import_(tmp_path / "all.jsonl") == 0


def test_import_says_what_is_wrong_and_takes_nothing(store, tmp_path):
    with pytest.raises(MeasureError, match=r"missing\.jsonl cannot be read: No such file"):
        store.import_(tmp_path / "missing.jsonl")
    path = tmp_path / "bad.jsonl"
    path.write_text("hello\n")
    with pytest.raises(MeasureError, match="no export of a measurement store"):
        store.import_(path)
    good = '{"key": "a", "cost": {"state": "measured", "median_us": 1.0}}'
    path.write_text(f'{{"collage_store": {STORE_EXPORT}}}\n{good}\n{{"key"\n')
    with pytest.raises(MeasureError, match="line 3"):
        store.import_(path)
    assert kept(store, "a") is None
    path.write_text('{"collage_store": 99}\n')
    with pytest.raises(MeasureError, match="format 99"):
        store.import_(path)


def test_export_to_an_impossible_place(store, tmp_path):
    store.put(measured("a", 1))
    with pytest.raises(MeasureError, match="cannot be written"):
        store.export(tmp_path / "no" / "such" / "folder.jsonl")


def test_damaged_file_is_named_and_can_be_cleared(tmp_path):
    path = tmp_path / "m.db"
    path.write_bytes(b"not a database at all, but long enough to be read as a header" * 50)
    with Store(path) as store:
        for use in (lambda: kept(store, "a"), lambda: store.put(measured("a", 1)), store.info):
            with pytest.raises(MeasureError, match=r"m\.db cannot be used.*collage store clear"):
                use()
        store.clear()
        store.put(measured("a", 1))
        assert kept(store, "a").median_us == 1


def test_another_database_and_another_version(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table poems (line text)")
    connection.close()
    with Store(path) as store, pytest.raises(MeasureError, match="no measurement store"):
        store.put(measured("a", 1))
    for version in (STORE_SCHEMA - 1, STORE_SCHEMA + 1):
        other = tmp_path / f"{version}.db"
        with sqlite3.connect(other) as connection:
            connection.execute(f"pragma user_version={version}")
        connection.close()
        with Store(other) as store, pytest.raises(MeasureError, match=f"format {version},"):
            kept(store, "a")
        with Store(other) as store:
            assert store.clear() == 0
            store.put(measured("a", 1))


def test_disk_full(store):
    store.put(measured("a", 1))
    with store._opened() as database:
        pages = database.execute("pragma page_count").fetchone()[0]
        database.execute(f"pragma max_page_count={pages}")
    with pytest.raises(MeasureError, match=r"m\.db cannot be used: .* disk is full"):
        store.put_many([measured(f"key{i}", 1.0) for i in range(5000)])
    assert kept(store, "a").median_us == 1.0


def test_a_disk_that_is_full_from_the_start_is_no_damage(tmp_path, monkeypatch):
    monkeypatch.setattr(
        module, "TABLES", "pragma max_page_count = 1; create table a (b); create table c (d);"
    )
    with Store(tmp_path / "m.db") as store:
        with pytest.raises(MeasureError, match="disk is full"):
            store.put(measured("a", 1))
        monkeypatch.undo()
        store.put(measured("a", 1))
        assert kept(store, "a").median_us == 1


def test_a_store_on_a_read_only_disk_is_used_read_only(store):
    """It is read; what is measured now lasts as long as it is open."""
    store.put(measured("a", 1))
    store.close()
    with read_only(store.path.parent):
        with Store(store.path) as reader:
            assert reader.info().measurements == 1 and not reader.info().writable
            assert kept(reader, "a").median_us == 1
        notice = store.check()
        assert notice is not None and "cannot be written" in notice
        store.put(measured("b", 2))
        assert kept(store, "a").median_us == 1 and kept(store, "b").median_us == 2
        for change in (store.clear, lambda: store.import_(store.path.parent / "all.jsonl")):
            with pytest.raises(
                MeasureError, match=r"m\.db cannot be written; check its permissions"
            ):
                change()
        store.close()
    assert store.check() is None and kept(store, "b") is None


def test_a_folder_that_cannot_be_made_is_noticed_and_no_obstacle(tmp_path):
    (tmp_path / "file").write_text("")
    with Store(tmp_path / "file" / "m.db") as store:
        assert "cannot be written" in (store.check() or "")
        store.put(measured("a", 1))
        assert kept(store, "a").median_us == 1


IMPOSSIBLE = {
    "negative": {"median_us": -5.0},
    "1e308": {"median_us": 1e308},
    "a count of 2^63": {"count": 2**63},
    "invalid without a reason": {"state": "invalid", "median_us": None},
}


def exported(folder, cost: dict, **of_measurement: object):
    """A file as another store may have exported it, with one measurement."""
    record = json.loads(msgspec.json.encode(measured("a", 5.0)))
    record["cost"] = {k: v for k, v in (record["cost"] | cost).items() if v is not None}
    path = folder / "hostile.jsonl"
    lines = ({"collage_store": STORE_EXPORT}, record | of_measurement)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_cost_that_cannot_be_is_not_imported(store, tmp_path, name):
    path = exported(tmp_path, IMPOSSIBLE[name])
    with pytest.raises(MeasureError, match="line 2"):
        store.import_(path)
    assert kept(store, "a") is None


def test_a_stored_cost_that_cannot_be_is_measured_again(store):
    store.put_many([measured("a", 5.0), measured("c", 6.0)])
    bad = msgspec.structs.replace(measured("b", 5.0).cost, median_us=1e308)
    store.put(msgspec.structs.replace(measured("b", 5.0), cost=bad))
    with store._opened() as database, database.conn:
        database.execute("update measurements set value = substr(value, 1, 40) where key = 'c'")
    assert store.get_many(["a", "b", "c"]).keys() == {"a"}
    assert store.info().measurements == 1
    store.put(measured("c", 7.0))
    assert kept(store, "c").median_us == 7.0


def test_a_read_only_store_is_read_with_what_an_engine_has_not_moved_out_of_its_log(store):
    store.put(measured("a", 1))  # and stays open: the tables, too, are in the log alone
    copy = copy_in_memory(store.path)
    assert copy["measurements"].count == 1


def test_several_processes_and_threads_write_at_once_and_lose_nothing_when_killed(store):
    store.put(measured("a", 1))
    script = """
        import os, sys
        sys.path[:] = eval(sys.argv[2])
        from tests.unit.test_store import Store, measured
        store = Store(sys.argv[1])
        for i in range(40):
            store.put(measured(f"{os.getpid()}-{i}", 1.0))
        os.kill(os.getpid(), 9)
    """
    paths = repr([os.getcwd(), *sys.path])
    with ThreadPoolExecutor() as threads:
        processes = [threads.submit(python, script, store.path, paths) for _ in range(2)]
        for number in range(60):
            threads.submit(store.put, measured(f"t{number}", 1))
    assert [process.result().returncode for process in processes] == [-9, -9]
    assert store.info().measurements == 1 + 80 + 60


def test_a_result_for_one_model_only_leaves_the_others_alone(store, tmp_path):
    wrong = Measurement(key="a", cost=invalid("wrong numbers"), model="x", one_model=True)
    store.put(measured("a", 5.0))
    store.put(wrong)
    assert kept(store, "a").median_us == 5.0 and kept(store, "a", "y").median_us == 5.0
    assert kept(store, "a", "x").state == "invalid"
    store.export(tmp_path / "all.jsonl")
    with Store(tmp_path / "other.db") as other:
        assert other.import_(tmp_path / "all.jsonl") == 2
        assert kept(other, "a", "x").state == "invalid" and kept(other, "a").median_us == 5.0
