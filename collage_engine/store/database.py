"""Opening the store's SQLite file, and what SQLite's errors mean for a user."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from collage_engine.records.errors import MeasureError
from collage_engine.records.locks import locked
from collage_engine.records.versions import STORE_SCHEMA
from collage_engine.store.migrations.migrate import migrate, version_of

if TYPE_CHECKING:
    from sqlite_utils import Database

BUSY_S = 30.0
"""Seconds to wait while another process writes; chosen: a transaction takes milliseconds, a disk
that is asleep or full of other work takes seconds."""


def open_database(path: Path, *, writes: bool) -> Database:
    """Open a store and bring it to this version's schema.

    An older store that may not be written is copied into memory and migrated there, so that its
    rows can be read.

    Args:
        path: The file; for writing it is made if need be.
        writes: Whether the connection may change the file, where the file's permissions allow it.

    Raises:
        MeasureError: The file is of a newer version, or is no store.
        sqlite3.Error: The file is damaged, locked or cannot be opened.
        OSError: The folder cannot be made.
    """
    from sqlite_utils import Database

    existed = path.exists()
    if writes:
        path.parent.mkdir(parents=True, exist_ok=True)
    writable = writes and os.access(path if existed else path.parent, os.W_OK)
    uri = f"{path.resolve().as_uri()}?mode={'rwc' if writable else 'ro'}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, check_same_thread=False)
    try:
        version = version_of(connection)
        if version > STORE_SCHEMA:
            raise MeasureError(
                f"the measurement store {path} was written by a newer version of this "
                "program; update it, or choose another folder with COLLAGE_CACHE_DIR"
            )
        if version < STORE_SCHEMA and writable:
            # Going over to a WAL fails at once, whatever the timeout, while another does too.
            with locked(path.with_name(path.name + ".lock")):
                _migrate(connection, path, wal=True)
        elif version < STORE_SCHEMA:
            connection = _migrated_copy(connection, path)
        if writable:
            # NORMAL: a killed process loses nothing; only a power cut may lose the last ones.
            connection.execute("pragma synchronous = normal")
        return Database(connection)
    except BaseException:
        connection.close()
        raise


def _migrated_copy(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    connection.backup(copy)
    connection.close()
    _migrate(copy, path, wal=False)
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
    """What an error of SQLite or of the system means, and what to do about it."""
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
    """Whether an error means that the file's content is not what was written."""
    text = str(error)
    passing = any(word in text for word in ("readonly", "unable to open", "full", "locked"))
    return isinstance(error, (sqlite3.DatabaseError, msgspec.MsgspecError)) and not passing
