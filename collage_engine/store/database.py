"""Opening the store's SQLite file, and what SQLite's errors mean for a user."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

from collage_engine.records.versions import STORE_SCHEMA
from collage_engine.support.errors import MeasureError
from collage_engine.support.files import locked
from collage_engine.support.time_limits import ANSWER_S

if TYPE_CHECKING:
    from sqlite_utils import Database


TABLES = """
    create table measurements (key text primary key, value text);
    create table constants (key text primary key, value text);
"""
"""What a new store is made with; values are JSON. A change raises ``STORE_SCHEMA``."""


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


def open_database(path: Path) -> Database:
    """Open a store, whose file can be written and is made if need be.

    Raises:
        MeasureError: The file is of another version, or is no store.
        sqlite3.Error: The file is damaged, locked or cannot be opened.
    """
    from sqlite_utils import Database

    connection = sqlite3.connect(path, timeout=ANSWER_S, check_same_thread=False)
    try:
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


def copy_in_memory(path: Path) -> Database:
    """Open a copy in memory of a store whose file, or whose folder, cannot be written.

    What is written to the copy ends with the process. What a killed process left in the write-ahead
    log is not read: SQLite would have to make a file beside it.

    Args:
        path: The file; where there is none, the copy is empty.

    Raises:
        MeasureError: The file is of another version, or is no store.
        sqlite3.Error: The file is damaged, or cannot be read.
    """
    from sqlite_utils import Database

    copy = sqlite3.connect(":memory:", check_same_thread=False)
    if not path.exists():
        _make_tables(copy)
        return Database(copy)
    uri = path.resolve().as_uri() + "?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        _check(connection, path)
        connection.backup(copy)
    return Database(copy)


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
    """Refuse what is no store of this version."""
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


def in_words(error: Exception, path: Path) -> MeasureError:
    """Return what an error of SQLite or of the system means, and what to do about it."""
    text = getattr(error, "strerror", None) or str(error)
    return MeasureError(
        f"the measurement store {path} cannot be used: {text}; "
        "check its permissions and the disk, choose another folder with COLLAGE_CACHE_DIR, or run "
        "'collage store clear' if it is damaged"
    )
