"""From version 2 to 3: rows hold the times as they were measured, with the speed probe's reading.

In version 2 times were divided by ``slowness``, the probe's reading over its reference. Where a row
names the probe and the reference, its raw times and its reading follow. Where it does not, because
it is older, its times stay as they are, and the column ``normalised`` says so.

Candidates that were found wrong are forgotten: the rounding that a model amplifies was taken for
wrong numbers then.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

TIMES = ("median_us", "low_us", "high_us", "cold_us")


def migrate(connection: sqlite3.Connection) -> None:
    """Add the probe's columns and bring all rows to raw times."""
    for column in ("probe text", "reading_us real", "reference_us real", "normalised integer"):
        connection.execute(f"alter table measurements add column {column}")
    connection.execute("delete from measurements where reason like 'wrong numbers%'")
    rows = connection.execute("select key, cost from measurements").fetchall()
    for key, text in rows:
        cost = raw_record(json.loads(text))
        values = [cost.get(name) for name in TIMES]
        reading_us = cost.get("reading_us")
        connection.execute(
            "update measurements set cost = ?, median_us = ?, low_us = ?, high_us = ?, "
            "cold_us = ?, probe = ?, reading_us = ?, reference_us = ?, normalised = ? "
            "where key = ?",
            [
                json.dumps(cost),
                *values,
                cost.get("probe", ""),
                reading_us,
                cost.get("probe_us"),
                int(reading_us is None and cost.get("slowness", 1.0) != 1.0),
                key,
            ],
        )


def raw_record(cost: dict[str, Any]) -> dict[str, Any]:
    """Return a cost of version 2 with raw times, where its probe and reference are known."""
    if cost.get("state") != "measured" or not cost.get("probe") or not cost.get("probe_us"):
        return cost
    slowness = cost.get("slowness", 1.0)
    raw = {name: value for name, value in cost.items() if name != "slowness"}
    for name in TIMES:
        if raw.get(name) is not None:
            raw[name] *= slowness
    raw["repeats_us"] = [us * slowness for us in cost.get("repeats_us", ())]
    raw["reading_us"] = slowness * cost["probe_us"]
    return raw
