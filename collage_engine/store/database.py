"""Opening the store's SQLite file, and what SQLite's errors mean for a user."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from collage_engine.records.errors import MeasureError
from collage_engine.records.locks import locked
from collage_engine.records.sqlite import plain_tables, within_limits
from collage_engine.records.versions import STORE_SCHEMA
from collage_engine.store.migrations.migrate import migrate, version_of

if TYPE_CHECKING:
    from sqlite_utils import Database

BUSY_S = 30.0
"""Seconds to wait while another process writes; chosen: a transaction takes milliseconds, a disk
that is asleep or full of other work takes seconds."""


MOST_ROW_BYTES = 1 << 28
"""Bytes of the largest row, 256 MiB; chosen: tables of tuned kernels take some MB."""


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
    """Open a store and bring it to this version's schema.

    Args:
        path: The file; for writing it is made if need be.
        writes: Whether the connection may change the file, which must then be possible.

    Raises:
        MeasureError: The file is of a newer version, or is no store.
        sqlite3.Error: The file is damaged, locked or cannot be opened.
    """
    from sqlite_utils import Database

    uri = f"{path.resolve().as_uri()}?mode={'rwc' if writes else 'ro'}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, check_same_thread=False)
    try:
        within_limits(connection, None, MOST_ROW_BYTES)
        plain_tables(connection)
        version = version_of(connection)
        if version > STORE_SCHEMA:
            raise _newer(path)
        if version < STORE_SCHEMA and writes:
            # Going over to a WAL fails at once, whatever the timeout, while another does too.
            with locked(path.with_name(path.name + ".lock")):
                _migrate(connection, path, wal=True)
        elif version < STORE_SCHEMA:
            connection = _migrated_copy(connection, path, writes=False)
        if writes:
            # NORMAL: a killed process loses nothing; only a power cut may lose the last ones.
            connection.execute("pragma synchronous = normal")
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
        MeasureError: The file is of a newer version, or is no store.
        sqlite3.Error: The file is damaged.
        OSError: The file cannot be read.
    """
    from sqlite_utils import Database

    if not path.exists():
        empty = sqlite3.connect(":memory:", check_same_thread=False)
        _migrate(empty, path, wal=False)
        return Database(empty)
    try:
        with tempfile.TemporaryDirectory(prefix="collage-store-") as folder:
            place = Path(folder) / "store.db"
            for end in ("", "-wal"):
                source = Path(f"{path}{end}")
                if source.exists():
                    shutil.copyfile(source, f"{place}{end}")
            connection = sqlite3.connect(place)
            return Database(_loaded(connection, path, writes=writes))
    except OSError:
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        return Database(_loaded(sqlite3.connect(uri, uri=True), path, writes=writes))


def _loaded(connection: sqlite3.Connection, path: Path, *, writes: bool) -> sqlite3.Connection:
    """Check an open file and bring a copy of it to this version's schema."""
    try:
        within_limits(connection, None, MOST_ROW_BYTES)
        plain_tables(connection)
        if version_of(connection) > STORE_SCHEMA:
            raise _newer(path)
        return _migrated_copy(connection, path, writes=writes)
    finally:
        connection.close()


def _newer(path: Path) -> MeasureError:
    return MeasureError(
        f"the measurement store {path} was written by a newer version of this program; update it, "
        "or choose another folder with COLLAGE_CACHE_DIR"
    )


def _migrated_copy(
    connection: sqlite3.Connection, path: Path, *, writes: bool
) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    connection.backup(copy)
    connection.close()
    _migrate(copy, path, wal=False)
    if not writes:
        copy.execute("pragma query_only = on")
    return copy


def _migrate(connection: sqlite3.Connection, path: Path, *, wal: bool) -> None:
    try:
        if wal and not version_of(connection):
            connection.execute("select name from sqlite_master").fetchall()  # is it a database?
            connection.execute("pragma journal_mode = wal")
        migrate(connection)
    except MeasureError as error:
        raise MeasureError(f"{path}: {error}") from None


def in_words(error: Exception, path: Path) -> MeasureError:
    """Return what an error of SQLite or of the system means, and what to do about it."""
    text = str(error)
    name = f"the measurement store {path}"
    if isinstance(error, OSError):
        return MeasureError(f"{name} cannot be used: {error.strerror or text}")
    if "readonly" in text or "unable to open" in text:
        return MeasureError(
            f"{name} cannot be written; check its permissions, or choose another folder "
            "with COLLAGE_CACHE_DIR"
        )
    if "full" in text:
        return MeasureError(f"{name} cannot grow: the disk is full")
    if "locked" in text:
        return MeasureError(f"{name} is locked by another program")
    if is_damage(error):
        return MeasureError(
            f"{name} is damaged ({text}); move the file away or run 'collage store clear'"
        )
    return MeasureError(f"{name}: {text}")


def is_damage(error: Exception) -> bool:
    """Return whether an error means that the file's content is not what was written."""
    text = str(error)
    passing = any(word in text for word in ("readonly", "unable to open", "full", "locked"))
    return isinstance(error, (sqlite3.DatabaseError, msgspec.MsgspecError)) and not passing
