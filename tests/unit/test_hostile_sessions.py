"""Session files of strangers: they can neither hang nor fill the reader, nor make it compute."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

import pytest

from collage_engine.store import session_file as session_file
from collage_engine.store.session_file import load_session, save_session
from collage_engine.support.errors import SessionError
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


def test_reading_ends_at_its_time_limit(session, monkeypatch):
    monkeypatch.setattr(session_file, "ANSWER_S", -1.0)
    change(session, *["insert into documents select null, '{}', 0, 'x', '' from documents"] * 17)
    with pytest.raises(SessionError, match="is not a readable Collage session"):
        load_session(session)


def test_a_file_that_is_too_large_is_refused(session, monkeypatch):
    monkeypatch.setattr(session_file, "LARGEST_TABLE", 1000)
    with pytest.raises(SessionError, match="larger than"):
        load_session(session)


def test_a_named_pipe_is_no_session(tmp_path):
    os.mkfifo(tmp_path / "a.collage")
    with pytest.raises(SessionError, match="not a regular file"):
        load_session(tmp_path / "a.collage")


def test_an_empty_file_is_no_session(tmp_path):
    (tmp_path / "a.collage").touch()
    with pytest.raises(SessionError, match="it is no session of format"):
        load_session(tmp_path / "a.collage")


def test_reading_changes_no_byte_and_leaves_no_file(session):
    before = session.read_bytes()
    load_session(session)
    assert session.read_bytes() == before
    assert [path.name for path in session.parent.iterdir()] == ["a.collage"]


MISFITS: dict[str, tuple[str, ...]] = {
    "a table that is a query without end": (
        "drop table documents",
        f"create view documents as {ENDLESS} select a as position, a as json from t",
    ),
    "a computed column": (
        "alter table documents add column x"
        " as (instr(zeroblob(500000000), zeroblob(250000000) || x'01'))",
    ),
    "a view beside the table": (f"create view more as {ENDLESS} select a from t",),
    "a trigger": ("create trigger t after delete on documents begin select 1; end",),
    "a document that was changed": ("update documents set json = replace(json, 'r1', 'r2')",),
    "other bytes": ("update documents set json = x'00ff'",),
    "nested too deeply": ("update documents set json = printf('%.*c', 100000, '[')",),
    "no own document": ("update documents set is_own = 0",),
    "no documents": ("delete from documents",),
    "a table of an earlier version": ("create table meta (key text, value text)",),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_this_program_did_not_write_is_refused_in_a_sentence(session, name):
    change(session, *MISFITS[name])
    with pytest.raises(SessionError, match="is not a readable Collage session") as caught:
        load_session(session)  # queries that are run never end
    assert len(str(caught.value)) < 500


def test_records_of_another_form_are_refused_whatever_their_digest(session):
    for text in ("null", "[]", '{"model": 1}', "{"):
        digest = hashlib.sha256(text.encode()).hexdigest()
        change(session, f"update documents set json = '{text}', sha256 = '{digest}'")
        with pytest.raises(SessionError, match="is not a readable Collage session"):
            load_session(session)


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
