"""Brings a store of any older version to this one's schema, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from collage_engine.records.versions import STORE_SCHEMA
from collage_engine.store.migrations import to_version_1, to_version_2, to_version_3

STEPS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    to_version_1.migrate,
    to_version_2.migrate,
    to_version_3.migrate,
)
"""Step *k* (from 0) leads from version *k* to version *k* + 1. A step that was released never
changes: it has to go on reading files that are years old."""

assert len(STEPS) == STORE_SCHEMA, "a version of the store needs its migration"


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of an open store.

    0 for an empty file, and for other programs' databases.
    """
    return int(connection.execute("pragma user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection) -> None:
    """Take all steps that are missing; the file is unchanged if one of them fails.

    Raises:
        MeasureError: It is some other program's database.
        sqlite3.Error: The file is damaged, locked or cannot be written.
    """
    connection.execute("begin immediate")
    try:
        # Read again inside the transaction: another process may have been first.
        for step in STEPS[version_of(connection) :]:
            step(connection)
        connection.execute(f"pragma user_version = {STORE_SCHEMA}")
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it
            connection.execute("rollback")
        raise
