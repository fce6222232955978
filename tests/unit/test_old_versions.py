"""Sessions and stores that the version before the renovation wrote (tests/data/old_versions)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import msgspec
import pytest

from collage_engine.cli.main import main
from collage_engine.machine.worker import Worker
from collage_engine.records.errors import MeasureError
from collage_engine.records.versions import STORE_SCHEMA
from collage_engine.session.file import load_session, save_session
from collage_engine.store.measurement import Measurement
from collage_engine.store.migrations import migrate as migrations
from collage_engine.store.store import Store, StoreReader

OLD = Path(__file__).resolve().parents[1] / "data" / "old_versions"
SESSION = OLD / "session_1.collage"
WHOLE_MODEL = "d039e462a8438ce9c30cb865feaff2cc0b354248d5bd1376ac22700fc297a53e"
"""Key of MNIST as one partition on TVM."""


@pytest.fixture
def old_store(tmp_path) -> Path:
    return Path(shutil.copy(OLD / "store_1.db", tmp_path / "measurements.db"))


def schema(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return migrations.version_of(connection)


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as connection:
        return {row[0] for row in connection.execute("select name from sqlite_master")}


# -- the store -------------------------------------------------------------------------


def test_every_row_of_an_old_store_stays_as_it_was(old_store):
    with sqlite3.connect(old_store) as connection:
        keys = [row[0] for row in connection.execute("select key from measurements")]
        names = [row[0] for row in connection.execute("select name from constants")]
    with Store(old_store) as store:
        costs = store.get_many(keys)
        assert len(costs) == len(keys) == 58
        assert all(cost.usable and cost.from_store for cost in costs.values())
        whole = costs[WHOLE_MODEL]
        assert whole.median_us == 16.896907130470737 and len(whole.repeats_us) == whole.count == 8
        assert all(store.constant(name) is not None for name in names)
        assert store.info().toolchains.keys() == {"tvm", "onnxruntime"}


def test_opening_for_writing_migrates_and_both_old_and_new_rows_are_there(old_store):
    assert schema(old_store) == 1 and "tuning" not in tables(old_store)
    with Store(old_store) as store:
        cost = store.get(WHOLE_MODEL)
        assert cost is not None
        store.put(Measurement(key="new", cost=cost))
        store.put_tuning("t", "{}", context="c", workload="w")
    assert schema(old_store) == STORE_SCHEMA and "tuning" in tables(old_store)
    with Store(old_store) as store:
        assert store.get("new") is not None and store.has_tuning("c")
        assert store.info().measurements == 59


def test_tuning_records_of_version_1_are_kept(old_store):
    with sqlite3.connect(old_store) as connection:
        connection.execute(
            "create table tuning (key text primary key, context text, workload text, value text, "
            "stored_at text)"
        )
        connection.execute("insert into tuning values ('k', 'c', 'w', '[1]', '')")
    with Store(old_store) as store:
        assert store.has_tuning("c") and store.tuning_values(["k"]) == {"k": "[1]"}


def test_a_reader_reads_an_old_store_and_leaves_the_file_alone(old_store):
    before = old_store.read_bytes()
    with StoreReader(old_store) as store:
        assert store.get(WHOLE_MODEL) is not None
        assert not store.has_tuning("c")
    assert old_store.read_bytes() == before
    assert not hasattr(StoreReader, "put") and not hasattr(StoreReader, "clear")


def test_an_old_store_that_may_not_be_written_is_used_and_stays_as_it_is(old_store, monkeypatch):
    before = old_store.read_bytes()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Store(old_store) as store:
        cost = store.get(WHOLE_MODEL)
        assert cost is not None
        store.put(Measurement(key="new", cost=cost))
        assert store.get("new") is not None and "cannot be written" in (store.notice or "")
    assert old_store.read_bytes() == before


def test_a_step_that_fails_leaves_the_old_store_as_it_was(old_store, monkeypatch):
    def half_way(connection: sqlite3.Connection) -> None:
        connection.execute("drop table measurements")
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS[:-1], half_way))
    with Store(old_store) as store, pytest.raises(MeasureError):
        store.get(WHOLE_MODEL)
    assert schema(old_store) == 1
    with StoreReader(OLD / "store_1.db") as store:
        pass
    monkeypatch.undo()
    with Store(old_store) as store:
        assert store.info().measurements == 58


def migrate_in_child(path: str) -> int:
    """A target for children: open a store and count."""
    with Store(path) as store:
        return len(store.get_many([WHOLE_MODEL])) + store.info().measurements


def test_two_processes_may_migrate_at_once(old_store):
    target = f"{__name__}:migrate_in_child"
    with Worker(target) as one, Worker(target) as other:
        assert one.call(str(old_store)) == other.call(str(old_store)) == 59


def test_an_export_of_an_old_store_is_taken_by_a_new_one(old_store, tmp_path):
    assert StoreReader(old_store).export(tmp_path / "out.jsonl") == 58
    with Store(tmp_path / "other.db") as store:
        assert store.import_(tmp_path / "out.jsonl") == 58
        assert store.get(WHOLE_MODEL) is not None


# -- sessions --------------------------------------------------------------------------


def test_an_old_session_opens_with_all_it_holds():
    document, note = load_session(SESSION)
    assert note is None
    assert document.model.path == "mnist.onnx" and document.model.nodes == 11
    assert len(document.candidates) == 103
    assert sum(c.cost.usable for c in document.candidates) == 60
    assert [pin.text for pin in document.pins] == ["Plus214=tvm"]
    (run,) = document.runs
    assert run.winner == "tvm" and run.placement is not None
    assert run.placement.measured_us == 15.190249882834905
    assert [base.name for base in run.baselines if base.kind == "whole-model"] == [
        "tvm",
        "onnxruntime",
        "onnxruntime[level=basic]",
    ]
    assert len(run.costs) == 60 and [v.state for v in run.limits] == ["honoured"]


def test_an_old_session_is_written_again_without_loss(tmp_path):
    document, _ = load_session(SESSION)
    save_session(document, tmp_path / "copy.collage")
    again, note = load_session(tmp_path / "copy.collage")
    assert note is None and again == document


def test_no_field_of_an_old_session_is_forgotten():
    """What the records of today leave out of the JSON would be lost at the next save."""
    with sqlite3.connect(SESSION) as connection:
        raw = [msgspec.json.decode(row[0]) for row in connection.execute("select json from runs")]
    document, _ = load_session(SESSION)
    (before,), (after,) = raw, [msgspec.to_builtins(run) for run in document.runs]
    assert before.keys() <= after.keys()
    assert before["placement"]["partitions"][0].keys() <= after["placement"]["partitions"][0].keys()


@pytest.mark.parametrize("kind", ["html", "csv", "json", "svg"])
def test_reports_of_an_old_session(kind, tmp_path):
    assert main(["report", str(SESSION), "-o", str(tmp_path / f"report.{kind}")]) == 0
    assert (tmp_path / f"report.{kind}").stat().st_size > 2000


def test_an_old_session_is_explained_and_compared(capsys):
    assert main(["explain", str(SESSION), "0"]) == 0
    assert "regret" in capsys.readouterr().out
    assert main(["compare", str(SESSION), "last", "1"]) == 0
    assert "0 nodes moved" in capsys.readouterr().out
