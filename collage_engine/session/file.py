"""Reading and writing ``*.collage``: a SQLite file that any SQLite tool can read (``rows``).

A file is written beside its final name and renamed, so that it is never half-written. A file that
is read may come from anybody: only plain tables are read, for so long and so much, and what they
hold is checked (``session.check``) before anything is done with it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.errors import InvalidValue, SessionError
from collage_engine.records.files import LARGEST_TABLE, LARGEST_TEXT, MOST_ROWS, atomic_file
from collage_engine.records.graph import GraphRecord, ModelRecord, Node
from collage_engine.records.locks import folder_locked
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.ranges import Figure
from collage_engine.records.reasons import shown
from collage_engine.records.refusal import Refusal
from collage_engine.records.settings import RunSettings
from collage_engine.records.sqlite import plain_tables, within_limits
from collage_engine.records.time_limits import ANSWER_S
from collage_engine.records.toolchain import ToolchainState
from collage_engine.records.typed import decode
from collage_engine.records.versions import SESSION_FORMAT
from collage_engine.session.check import check_document
from collage_engine.session.document import Document, PlacedShape
from collage_engine.session.merge import merged
from collage_engine.session.rows import TABLES, StoredShape

if TYPE_CHECKING:
    import sqlite_utils

T = TypeVar("T")


class _Interface(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and outputs of the graph, as ``meta`` has them."""

    inputs: tuple[NodeIndex, ...]
    outputs: tuple[NodeIndex, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]


def save_session(
    document: Document, path: str | Path, seen: Collection[str] | None = None
) -> Document:
    """Write a document to a file.

    Args:
        document: What is written.
        path: The file; what it holds is replaced.
        seen: Ids of the runs that the file held when it was read or written last. With them the
            file is locked, read again, and what another process has added to it is kept
            (``session.merge``). None: the file is replaced, whatever it holds.

    Returns:
        The document as the file holds it now.

    Raises:
        SessionError: The file cannot be written, or holds something else than a session by now.
    """
    path = Path(path)
    try:
        if seen is None:
            return _save(document, path)
        with folder_locked(path.resolve().parent):
            if path.exists() and path.stat().st_size:
                document = merged(document, load_session(path), seen)
            return _save(document, path)
    except (OSError, ValueError, sqlite3.Error) as error:  # ValueError: no name of a file
        raise SessionError(f"cannot write the session {path}: {error}") from error


def _save(document: Document, path: Path) -> Document:
    with atomic_file(path) as new:
        _write(document, str(new))
    return document


def _write(document: Document, path: str) -> None:
    import sqlite_utils  # it loads click and pluggy, and reading needs none of them

    with contextlib.closing(sqlite_utils.Database(path)) as database:
        _fill(document, database)


def _fill(document: Document, database: sqlite_utils.Database) -> None:
    # The file is new and unnamed until the rename: no journal is needed to protect it.
    database.conn.execute("pragma journal_mode = off")
    database.conn.execute("pragma synchronous = off")
    for table in TABLES:
        rows = list(table.rows(document))
        if rows:
            columns = dict(table.columns or {})
            database.table(table.name).insert_all(rows, pk=table.key, columns=columns)
        else:
            database.table(table.name).create({table.key: str, "json": str}, pk=table.key)
    database.conn.commit()


def load_session(path: str | Path) -> Document:
    """Read a session.

    Raises:
        SessionError: It is no session, or one of another version of this program.
    """
    path = Path(path)
    try:
        status = path.stat()
    except (OSError, ValueError):  # a name that no file can have
        raise SessionError(f"there is no session file {path}") from None
    if not stat.S_ISREG(status.st_mode):
        raise SessionError(f"there is no session file {path}: what is there is no regular file")
    if status.st_size > LARGEST_TABLE:
        raise SessionError(f"{path} is larger than {LARGEST_TABLE >> 20} MiB: it is no session")
    try:
        connection = sqlite3.connect(_uri(path), uri=True)
        try:
            within_limits(connection, time.monotonic() + ANSWER_S, LARGEST_TEXT)
            document = _read(connection, path)
        finally:
            connection.close()
        check_document(document)
    except (sqlite3.Error, msgspec.MsgspecError, InvalidValue, KeyError, MemoryError) as error:
        raise SessionError(
            f"{path} is not a readable Collage session: {error or 'it takes too much memory'}"
        ) from error
    return document


def _uri(path: Path) -> str:
    """Return the file, to be read and never changed.

    A session is written whole and in no log, so that it can be read where nothing can be written.
    """
    return path.resolve().as_uri() + "?mode=ro&immutable=1"


def _read(connection: sqlite3.Connection, path: Path) -> Document:
    try:
        tables = plain_tables(connection)
        meta = dict(_rows(connection, "select key, value from meta"))
        version = meta["format"]
    except (sqlite3.Error, KeyError, TypeError) as error:
        raise SessionError(f"{path} is not a Collage session file") from error
    if version != str(SESSION_FORMAT):
        raise SessionError(
            f"{path} has session format {shown(str(version))}, and this version of Collage "
            f"Explorer reads format {SESSION_FORMAT} only: open it with the version that wrote it"
        )
    unknown = tables - {table.name for table in TABLES}
    if unknown:
        table = shown(min(unknown))
        raise SessionError(f"{path} is not a Collage session file: it has a table '{table}'")
    wrong = next((key for key, value in meta.items() if not isinstance(value, str)), None)
    if wrong is not None:
        name = shown(str(wrong))
        raise SessionError(f"{path} is not a readable Collage session: its '{name}' is no text")
    document = _decode(connection, meta)
    document.shapes = _shapes(connection)
    return document


def _decode(connection: sqlite3.Connection, meta: dict[str, str]) -> Document:
    def all_of(table: str, kind: type[T], order: str = "rowid") -> list[T]:
        found = _rows(connection, f"select json from {table} order by {order}")
        return [decode(_text(row[0], table), kind) for row in found]

    interface = decode(meta["interface"], _Interface)
    graph = GraphRecord(
        nodes=tuple(all_of("nodes", Node, '"index"')),
        inputs=interface.inputs,
        outputs=interface.outputs,
        input_names=interface.input_names,
        output_names=interface.output_names,
    )
    return Document(
        model=decode(meta["model"], ModelRecord),
        graph=graph,
        candidates=all_of("candidates", CandidateRecord),
        without_candidates=decode(meta["not_offered"], dict[str, dict[int, Refusal]]),
        pins=all_of("pins", Pin, "position"),
        runs=all_of("runs", Run, "position"),
        settings=decode(meta["settings"], RunSettings),
        constants=decode(meta["constants"], dict[str, Figure]),
        toolchains=decode(meta["toolchains"], list[ToolchainState]),
    )


def _shapes(connection: sqlite3.Connection) -> list[PlacedShape]:
    found = []
    for row in _rows(connection, "select json from shapes order by position"):
        stored = decode(_text(row[0], "shapes"), StoredShape)
        document = None
        if stored.document is not None:
            document = Document(**msgspec.structs.asdict(stored.document))
        found.append(PlacedShape(stored.choice, document))
    return found


def _rows(connection: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query; SessionError when there are more than any session has."""
    for count, row in enumerate(connection.execute(query)):
        if count >= MOST_ROWS:
            raise InvalidValue(f"a table has more than {MOST_ROWS:,} rows")
        yield row


def _text(value: Any, table: str) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"a row of its table {table!r} holds no text")
    return value
