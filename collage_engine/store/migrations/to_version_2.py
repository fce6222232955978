"""From version 1 to 2: the table of tuning records belongs to the schema.

In version 1 whoever kept the first tuning record made the table, so that it may be there or not.
"""

from __future__ import annotations

import sqlite3


def migrate(connection: sqlite3.Connection) -> None:
    """Make the table unless it is there, and an index for the question whether any is known."""
    connection.execute(
        "create table if not exists tuning (key text primary key, context text, workload text, "
        "value text, stored_at text)"
    )
    connection.execute("create index if not exists tuning_by_context on tuning (context)")
