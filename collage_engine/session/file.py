"""Reading and writing ``*.collage``: a SQLite file that any SQLite tool can read (``rows``).

A file is written beside its final name and renamed, so that it is never half-written.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import sqlite_utils

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.errors import SessionError
from collage_engine.records.files import atomic_file
from collage_engine.records.graph import GraphRecord, ModelRecord, Node
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_engine.records.typed import decode
from collage_engine.records.versions import SESSION_FORMAT
from collage_engine.session.document import Document
from collage_engine.session.rows import TABLES

T = TypeVar("T")


def save_session(document: Document, path: str | Path) -> None:
    """Write the document to ``path``, replacing it. Raises SessionError (disk full, no folder)."""
    path = Path(path)
    try:
        with atomic_file(path) as new:
            _write(document, str(new))
    except (OSError, sqlite3.Error, UnicodeError) as error:
        raise SessionError(f"cannot write the session {path}: {error}") from error


def _write(document: Document, path: str) -> None:
    database = sqlite_utils.Database(path)
    # The file is new and unnamed until the rename: no journal is needed to protect it.
    database.conn.execute("pragma journal_mode = off")
    database.conn.execute("pragma synchronous = off")
    for table in TABLES:
        rows = list(table.rows(document))
        if rows:
            columns = dict(table.columns or {})
            database.table(table.name).insert_all(rows, pk=table.key, columns=columns)
        else:
            empty: dict[str, Any] = {table.key: str} if table.key else {}
            database.table(table.name).create({**empty, "json": str}, pk=table.key)
    database.conn.commit()
    database.close()


def load_session(path: str | Path) -> tuple[Document, str | None]:
    """Read a session; the second value is a note when it may only be read (another version).

    Raises SessionError with a sentence when it is no session, or too new to be understood.
    """
    path = Path(path)
    if not path.is_file():
        raise SessionError(f"there is no session file {path}")
    try:
        connection = sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True)
        try:
            return _read(connection, path)
        finally:
            connection.close()
    except (sqlite3.Error, msgspec.MsgspecError, KeyError) as error:
        raise SessionError(f"{path} is not a readable Collage session: {error}") from error


def _read(connection: sqlite3.Connection, path: Path) -> tuple[Document, str | None]:
    try:
        meta = dict(connection.execute("select key, value from meta"))
        version = int(meta["format"])
    except (sqlite3.Error, KeyError, ValueError) as error:
        raise SessionError(f"{path} is not a Collage session file") from error
    note = None
    if version > SESSION_FORMAT:
        note = (
            f"{path.name} was written by a newer Collage Explorer (session format {version}, this "
            f"one writes {SESSION_FORMAT}); it is open for reading only, save a copy to change it"
        )
    try:
        document = _decode(connection, meta)
    except (sqlite3.Error, msgspec.MsgspecError, KeyError) as error:
        if note is None:
            raise
        raise SessionError(
            f"{path} has session format {version} and cannot be understood by this explorer, "
            f"which reads format {SESSION_FORMAT}: open it with the version that wrote it "
            f"({meta.get('engine', 'unknown')})"
        ) from error
    return document, note


def _decode(connection: sqlite3.Connection, meta: dict[str, str]) -> Document:
    def all_of(table: str, kind: type[T], order: str = "rowid") -> list[T]:
        found = connection.execute(f"select json from {table} order by {order}")
        return [decode(row[0], kind) for row in found]

    interface = decode(meta["interface"])
    graph = GraphRecord(
        nodes=tuple(all_of("nodes", Node, '"index"')),
        inputs=tuple(interface["inputs"]),
        outputs=tuple(interface["outputs"]),
        input_names=tuple(interface["input_names"]),
        output_names=tuple(interface["output_names"]),
    )
    runs = all_of("runs", Run, "position")
    if "toolchains" in meta:
        toolchains = decode(meta["toolchains"], list[ToolchainState])
    else:  # an older explorer kept them with the runs only
        toolchains = list(runs[-1].toolchains) if runs else []
    return Document(
        model=decode(meta["model"], ModelRecord),
        graph=graph,
        candidates=all_of("candidates", CandidateRecord),
        without_candidates=decode(meta["not_offered"], dict[str, dict[int, str]]),
        pins=all_of("pins", Pin, "position"),
        runs=runs,
        settings=decode(meta["settings"], RunSettings),
        constants=decode(meta["constants"], dict[str, float]),
        toolchains=toolchains,
    )
