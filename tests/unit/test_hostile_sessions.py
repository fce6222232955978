"""Session files of strangers: they can neither hang nor fill the reader, nor make it compute."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from collage_engine.records.errors import SessionError
from collage_engine.session import file as session_file
from collage_engine.session.file import load_session, save_session
from tests.unit.test_session import a_document

ENDLESS = "with recursive t(a) as (select 1 union all select a + 1 from t) "


@pytest.fixture
def session(tmp_path) -> Path:
    path = tmp_path / "a.collage"
    save_session(a_document(), path)
    return path


def change(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def meta(path: Path, key: str, make: Callable[[object], object]) -> None:
    """Change a value of the table ``meta``."""
    with sqlite3.connect(path) as connection:
        (text,) = connection.execute("select value from meta where key = ?", (key,)).fetchone()
        changed = json.dumps(make(json.loads(text)))
        connection.execute("update meta set value = ? where key = ?", (changed, key))
    connection.close()


def record(path: Path, table: str, make: Callable[[dict], None]) -> None:
    """Change the record in the last row of a table."""
    with sqlite3.connect(path) as connection:
        query = f"select rowid, json from {table} order by rowid desc"
        row, text = connection.execute(query).fetchone()
        changed = json.loads(text)
        make(changed)
        statement = f"update {table} set json = ? where rowid = ?"
        connection.execute(statement, (json.dumps(changed), row))
    connection.close()


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("meta", ENDLESS + "select a as key, a as value from t"),
        ("nodes", ENDLESS + 'select a as "index", a as json from t'),
        ("runs", "select 0 as position, zeroblob(900000000) as json"),
        ("pins", ENDLESS + "select a as position, a as json from t"),
    ],
)
def test_a_table_that_is_a_query_is_refused_unread(session, name, query):
    change(session, f"drop table {name}", f"create view {name} as {query}")
    with pytest.raises(SessionError, match="is not a Collage session"):
        load_session(session)  # queries that are run never end


def test_a_trigger_is_refused(session):
    change(session, "create trigger t after insert on runs begin delete from runs; end")
    with pytest.raises(SessionError, match="is not a Collage session"):
        load_session(session)


def test_a_computed_column_is_refused(session):
    change(
        session,
        "drop table runs",
        "create table runs (position integer, "
        "json text generated always as (printf('%.*c', 200000000, 'x')))",
        "insert into runs (position) values (1)",
    )
    with pytest.raises(SessionError, match="is not a Collage session"):
        load_session(session)


def test_reading_ends_at_its_time_limit(session, monkeypatch):
    monkeypatch.setattr(session_file, "ANSWER_S", -1.0)
    with sqlite3.connect(session) as connection:
        rows = ((f"more{k}", "x") for k in range(200_000))
        connection.executemany("insert into meta (key, value) values (?, ?)", rows)
    with pytest.raises(SessionError):
        load_session(session)


def test_too_many_rows_are_refused(session, monkeypatch):
    monkeypatch.setattr(session_file, "MOST_ROWS", 1)
    with pytest.raises(SessionError, match="rows"):
        load_session(session)


def test_a_row_or_file_that_is_too_large_is_refused(session, monkeypatch):
    monkeypatch.setattr(session_file, "LARGEST_TEXT", 100)
    with pytest.raises(SessionError):
        load_session(session)
    monkeypatch.setattr(session_file, "LARGEST_TABLE", 1000)
    with pytest.raises(SessionError, match="larger than"):
        load_session(session)


def test_a_named_pipe_is_no_session(tmp_path):
    os.mkfifo(tmp_path / "a.collage")
    with pytest.raises(SessionError, match="no regular file"):
        load_session(tmp_path / "a.collage")


def test_reading_changes_no_byte_and_leaves_no_file(session):
    before = session.read_bytes()
    load_session(session)
    assert session.read_bytes() == before
    assert [path.name for path in session.parent.iterdir()] == ["a.collage"]


def cost(**values: object) -> Callable[[dict], None]:
    return lambda candidate: candidate["cost"].update(values)


def partition(**values: object) -> Callable[[dict], None]:
    return lambda run: run["placement"]["partitions"][0].update(values)


def placement(**values: object) -> Callable[[dict], None]:
    return lambda run: run["placement"].update(values)


REFUSAL = {"kind": "judged", "detail": "no"}
MISFITS: dict[str, Callable[[Path], None]] = {
    "null in meta": lambda s: change(s, "update meta set value = null where key = 'model'"),
    "a number in meta": lambda s: change(s, "update meta set value = x'00' where key = 'model'"),
    "interface is null": lambda s: meta(s, "interface", lambda _: None),
    "interface is a list": lambda s: meta(s, "interface", lambda _: [1]),
    "an input is no node": lambda s: meta(s, "interface", lambda i: {**i, "inputs": [7]}),
    "an input is a call": lambda s: meta(s, "interface", lambda i: {**i, "inputs": [1]}),
    "an output is no node": lambda s: meta(s, "interface", lambda i: {**i, "outputs": [-1]}),
    "names that are too many": lambda s: meta(
        s, "interface", lambda i: {**i, "input_names": ["a", "b"]}
    ),
    "a node reads beyond the graph": lambda s: record(s, "nodes", lambda n: n.update(inputs=[9])),
    "a node reads itself": lambda s: record(s, "nodes", lambda n: n.update(inputs=[1])),
    "a node of another place": lambda s: record(s, "nodes", lambda n: n.update(index=5)),
    "a node without a type": lambda s: record(s, "nodes", lambda n: n.update(types=[])),
    "a negative dimension": lambda s: record(
        s, "nodes", lambda n: n.update(types=[{"shape": [-2], "dtype": "float32"}])
    ),
    "more elements than can be counted": lambda s: record(
        s, "nodes", lambda n: n.update(types=[{"shape": [10**400, 3], "dtype": "float32"}])
    ),
    "a table with a name of 70 KB": lambda s: change(s, f"create table {'t' * 70_000} (a)"),
    "a key of 70 KB": lambda s: change(
        s, f"insert into meta (key, value) values ('{'k' * 70_000}', x'00')"
    ),
    "a post-dominator before": lambda s: record(s, "nodes", lambda n: n.update(post_dominator=0)),
    "no nodes": lambda s: change(s, "delete from nodes"),
    "a row without text": lambda s: change(s, "update nodes set json = null"),
    "more operators than the graph": lambda s: meta(s, "model", lambda m: {**m, "nodes": 12}),
    "a candidate without nodes": lambda s: record(s, "candidates", lambda c: c.update(nodes=[])),
    "a candidate elsewhere": lambda s: record(s, "candidates", lambda c: c.update(nodes=[7])),
    "two candidates of a name": lambda s: record(s, "candidates", lambda c: c.update(id="c")),
    "a composite elsewhere": lambda s: record(
        s, "candidates", lambda c: c.update(composites=[["x", [4]]])
    ),
    "a format of no value": lambda s: record(s, "candidates", lambda c: c.update(takes={"9": "x"})),
    "a cost of 1e308": lambda s: record(
        s, "candidates", cost(state="measured", reason=None, median_us=1e308)
    ),
    "a negative cost": lambda s: record(
        s, "candidates", cost(state="measured", reason=None, median_us=-5.0)
    ),
    "a cost of nothing": lambda s: record(
        s, "candidates", cost(state="measured", reason=None, median_us=0.0)
    ),
    "measured without a time": lambda s: record(s, "candidates", cost(state="measured")),
    "a pin elsewhere": lambda s: record(s, "pins", lambda p: p.update(nodes=[3])),
    "a pin on nothing": lambda s: record(s, "pins", lambda p: p.update(nodes=[])),
    "a constant that is negative": lambda s: meta(s, "constants", lambda _: {"launch": -1.0}),
    "a reason for no node": lambda s: meta(s, "not_offered", lambda _: {"tvm": {"7": REFUSAL}}),
    "a budget that is negative": lambda s: meta(s, "settings", lambda d: {**d, "budget_s": -1}),
    "a partition elsewhere": lambda s: record(s, "runs", partition(nodes=[5])),
    "a partition of nothing": lambda s: record(s, "runs", partition(nodes=[])),
    "a placement of 0 µs": lambda s: record(
        s, "runs", lambda r: r["placement"].update(measured_us=0)
    ),
    "a placement without partitions": lambda s: record(
        s, "runs", lambda r: r["placement"].update(partitions=[])
    ),
    "seconds that are negative": lambda s: record(s, "runs", lambda r: r.update(seconds={"a": -1})),
}


@pytest.mark.parametrize("name", MISFITS)
def test_records_that_do_not_fit_each_other_are_refused_in_a_sentence(session, name):
    MISFITS[name](session)
    with pytest.raises(SessionError, match="is not a") as caught:
        load_session(session)
    assert len(str(caught.value)) < 500


def test_two_writers_of_one_session_keep_both_runs(session):
    import msgspec

    first, second = load_session(session), load_session(session)
    seen = {run.id for run in first.runs}
    for document, name, moment in ((first, "mine", "2030-01-02"), (second, "other", "2030-01-01")):
        run = msgspec.structs.replace(document.runs[0], id=name, started_at=moment)
        document.runs.append(run)
    save_session(first, session, seen)
    after = save_session(second, session, seen)
    assert [run.id for run in after.runs] == ["r1", "other", "mine"]
    assert load_session(session) == after


def test_a_run_that_was_deleted_does_not_come_back_by_merging(session):
    document = load_session(session)
    document.runs.clear()
    assert save_session(document, session, {"r1"}).runs == []
    assert load_session(session).runs == []


def test_without_a_common_past_the_file_is_replaced(session, tmp_path):
    other = a_document()
    other.runs.clear()
    save_session(other, session)
    assert load_session(session).runs == []


def test_what_became_no_session_in_the_meantime_is_not_overwritten(session):
    session.write_text("the only copy of a novel")
    with pytest.raises(SessionError):
        save_session(a_document(), session, {"r1"})
    assert session.read_text() == "the only copy of a novel"


def test_a_session_that_moved_is_written_anew(session):
    shutil.move(session, session.with_name("moved.collage"))
    assert save_session(a_document(), session, {"r1"}) == a_document()
