"""Reading SQLite files that may come from anybody: plain tables only, within limits.

A view can be a query that never ends, a trigger runs when a row is written, a generated column is
computed when it is read. None of them belongs to a file of this program.
"""

from __future__ import annotations

import sqlite3
import time

STEPS = 20_000
"""Steps of SQLite's virtual machine between two looks at the clock. Measured: 0.2 ms
of a query that joins, 1.2 ms of one that sorts."""


def within_limits(
    connection: sqlite3.Connection, deadline: float | None, most_row_bytes: int
) -> None:
    """Bound what a connection may do with a file that nobody trusts.

    Args:
        connection: The connection; nothing was asked of it yet.
        deadline: A ``time.monotonic()`` after which every query ends with
            ``sqlite3.OperationalError`` ("interrupted"); None: there is none.
        most_row_bytes: Bytes of the largest text or row.
    """
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most_row_bytes)
    connection.execute("pragma trusted_schema = off")
    if deadline is not None:
        end = deadline
        connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)


def plain_tables(connection: sqlite3.Connection) -> set[str]:
    """Return the names of all tables of a file.

    Raises:
        sqlite3.DatabaseError: It has a view, a trigger, a virtual table or a computed column; or it
            is no database.
    """
    names: set[str] = set()
    query = "select type, name, sql from sqlite_master"
    for kind, name, sql in connection.execute(query).fetchall():
        if kind == "table" and str(sql).lower().split()[:2] == ["create", "virtual"]:
            kind = "virtual table"
        if kind not in ("table", "index"):
            raise sqlite3.DatabaseError(
                f"it has a {kind} {str(name)[:80]!r}, which no file of this program has"
            )
        if kind == "table" and not str(name).startswith("sqlite_"):
            names.add(str(name))
    for name in names:
        quoted = name.replace('"', '""')
        columns = connection.execute(f'pragma table_xinfo("{quoted}")').fetchall()
        # The last column says how a column is hidden: 2 and 3 are computed ones.
        if any(column[-1] for column in columns):
            raise sqlite3.DatabaseError(f"its table {name[:80]!r} has a computed column")
    return names
