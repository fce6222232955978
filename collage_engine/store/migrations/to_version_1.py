"""Makes version 1 of an empty file: measurements and constants of the machine."""

from __future__ import annotations

import sqlite3

from collage_engine.records.errors import MeasureError


def migrate(connection: sqlite3.Connection) -> None:
    """Make the tables; MeasureError where there are others already."""
    names = {row[0] for row in connection.execute("select name from sqlite_master").fetchall()}
    if names - {"measurements", "constants", "by_toolchain"}:
        raise MeasureError("it is no measurement store but some other database")
    connection.execute(
        """
        create table if not exists measurements (
            key text primary key, label text, toolchain text, instance text, threads integer,
            device text, fingerprint text, versions text, model text, one_model integer,
            state text, median_us real, low_us real, high_us real, cold_us real,
            count integer, max_rel_error real, reason text, measured_at text, cost text)
        """
    )
    connection.execute(
        "create table if not exists constants (name text primary key, value text, measured_at text)"
    )
    connection.execute("create index if not exists by_toolchain on measurements (toolchain)")
