"""Opening the store's SQLite file, and what SQLite's errors mean for a user."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from collage_engine.records.errors import MeasureError
from collage_engine.records.files import LARGEST_TEXT
from collage_engine.records.locks import locked
from collage_engine.records.sqlite import plain_tables, within_limits
from collage_engine.records.time_limits import ANSWER_S
from collage_engine.records.versions import STORE_SCHEMA

if TYPE_CHECKING:
    from sqlite_utils import Database


TABLES = """
    create table measurements (
        key text primary key, label text, toolchain text, instance text, threads integer,
        device text, versions text, model text, one_model integer, state text,
        median_us real, low_us real, high_us real, count integer, max_rel_error real,
        reason text, measured_at text, cost text);
    create index by_toolchain on measurements (toolchain);
    create table constants (name text primary key, value text, measured_at text);
    create table tuning (
        key text primary key, context text, workload text, value text, stored_at text);
    create index tuning_by_context on tuning (context);
"""
"""What a new store is made with. A column that is added or changed raises ``STORE_SCHEMA``."""


def can_be_written(path: Path) -> bool:
    """Return whether a store can be changed: its file, and the logs that SQLite puts beside it.

    A folder that is not there yet is made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    files = [Path(f"{path}{end}") for end in ("", "-wal", "-shm")]
    return os.access(path.parent, os.W_OK | os.X_OK) and all(
        os.access(file, os.W_OK) for file in files if file.exists()
    )


def open_database(path: Path, *, writes: bool) -> Database:
    """Open a store.

    Args:
        path: The file; for writing it is made if need be.
        writes: Whether the connection may change the file, which must then be possible.

    Raises:
        MeasureError: The file is of another version, or is no store.
        sqlite3.Error: The file is damaged, locked or cannot be opened.
    """
    from sqlite_utils import Database

    uri = f"{path.resolve().as_uri()}?mode={'rwc' if writes else 'ro'}"
    connection = sqlite3.connect(uri, uri=True, timeout=ANSWER_S, check_same_thread=False)
    try:
        if writes:
            # Going over to a WAL fails at once, whatever the timeout, while another does too.
            with locked(path.with_name(path.name + ".lock")):
                if _is_empty(connection):
                    connection.execute("pragma journal_mode = wal")
                    _make_tables(connection)
            # NORMAL: a killed process loses nothing; only a power cut may lose the last ones.
            connection.execute("pragma synchronous = normal")
        _check(connection, path)
        return Database(connection)
    except BaseException:
        connection.close()
        raise


def copy_in_memory(path: Path, *, writes: bool) -> Database:
    """Open a copy in memory of a store whose file, or whose folder, cannot be written.

    SQLite reads a database with a write-ahead log only where it can make a file beside it. So the
    file and its log are copied to a folder for temporary files first; where there is none, what is
    in the file itself is read.

    Args:
        path: The file; where there is none, the copy is empty.
        writes: Whether the copy can be changed. What is written to it ends with the process.

    Raises:
        MeasureError: The file is of another version, or is no store.
        sqlite3.Error: The file is damaged.
        OSError: The file cannot be read.
    """
    from sqlite_utils import Database

    if not path.exists():
        empty = sqlite3.connect(":memory:", check_same_thread=False)
        _make_tables(empty)
        return Database(empty)
    try:
        with tempfile.TemporaryDirectory(prefix="collage-store-") as folder:
            place = Path(folder) / "store.db"
            for end in ("", "-wal"):
                source = Path(f"{path}{end}")
                if source.exists():
                    shutil.copyfile(source, f"{place}{end}")
            return Database(_loaded(sqlite3.connect(place), path, writes=writes))
    except OSError:
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        return Database(_loaded(sqlite3.connect(uri, uri=True), path, writes=writes))


def _loaded(connection: sqlite3.Connection, path: Path, *, writes: bool) -> sqlite3.Connection:
    """Check an open file, close it, and return a copy of it in memory."""
    with contextlib.closing(connection):
        _check(connection, path)
        copy = sqlite3.connect(":memory:", check_same_thread=False)
        connection.backup(copy)
    if not writes:
        copy.execute("pragma query_only = on")
    return copy


def _version_of(connection: sqlite3.Connection) -> int:
    """Return the version of an open store; 0 for an empty file and other programs' databases."""
    return int(connection.execute("pragma user_version").fetchone()[0])


def _is_empty(connection: sqlite3.Connection) -> bool:
    tables = connection.execute("select count(*) from sqlite_master").fetchone()[0]
    return not tables and not _version_of(connection)


def _make_tables(connection: sqlite3.Connection) -> None:
    """Fill an empty database with the tables of a store, in one transaction.

    Raises:
        sqlite3.Error: It cannot be written; the file is empty still.
    """
    try:
        connection.executescript(
            f"begin immediate; {TABLES} pragma user_version = {STORE_SCHEMA}; commit;"
        )
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it
            connection.rollback()
        raise


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse what is no store of this version, and what SQLite would run by itself."""
    within_limits(connection, None, LARGEST_TEXT)
    plain_tables(connection)
    version = _version_of(connection)
    if version == STORE_SCHEMA:
        return
    if not version:
        raise MeasureError(f"{path}: it is no measurement store but some other database")
    raise MeasureError(
        f"the measurement store {path} has format {version}, and this version of Collage Explorer "
        f"reads format {STORE_SCHEMA} only; run 'collage store clear', or choose another folder "
        "with COLLAGE_CACHE_DIR"
    )


PASSING = frozenset(
    {
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    }
)
"""Result codes of SQLite that say nothing of what is in the file."""


def in_words(error: Exception, path: Path) -> MeasureError:
    """Return what an error of SQLite or of the system means, and what to do about it."""
    text = str(error)
    name = f"the measurement store {path}"
    if isinstance(error, OSError):
        return MeasureError(f"{name} cannot be used: {error.strerror or text}")
    code = _code(error)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return MeasureError(
            f"{name} cannot be written; check its permissions, or choose another folder "
            "with COLLAGE_CACHE_DIR"
        )
    if code == sqlite3.SQLITE_FULL:
        return MeasureError(f"{name} cannot grow: the disk is full")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return MeasureError(f"{name} is locked by another program")
    if is_damage(error):
        return MeasureError(
            f"{name} is damaged ({text}); move the file away or run 'collage store clear'"
        )
    return MeasureError(f"{name}: {text}")


def is_damage(error: Exception) -> bool:
    """Return whether an error means that the file's content is not what was written."""
    damaging = isinstance(error, (sqlite3.DatabaseError, msgspec.MsgspecError))
    return damaging and _code(error) not in PASSING


def _code(error: Exception) -> int:
    """Return SQLite's primary result code (sqlite.org/rescode.html); 0: it is no error of its."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
