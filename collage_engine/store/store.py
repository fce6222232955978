"""Measurements kept across models, runs and days: one SQLite file in the user's cache folder.

Several engines may use it at once (write-ahead log). Every measurement is committed at once,
so an engine that is killed loses none.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from collage_engine.machine.folders import cache_folder
from collage_engine.records.cost import Cost
from collage_engine.records.errors import MeasureError
from collage_engine.records.files import atomic_file
from collage_engine.records.locks import locked
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.typed import decode
from collage_engine.store.measurement import Measurement, StoreInfo, now_text

SCHEMA_VERSION = 1
FILE_NAME = "measurements.db"
CHUNK = 500
"""Keys per query; SQLite limits the number of parameters."""


class Store:
    """Costs by key, and named constants of this machine. Safe to use from several threads.

    Every method raises ``MeasureError`` with one clear sentence when the file is damaged, is
    no store, comes from a newer version, cannot be written, or the disk is full.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else cache_folder() / FILE_NAME
        self._lock = threading.RLock()
        self._database: Any = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ reading

    def get(self, key: str, model: str = "") -> Cost | None:
        return self.get_many([key], model).get(key)

    def get_many(self, keys: Iterable[str], model: str = "") -> dict[str, Cost]:
        """The stored costs among these keys, marked ``from_store``.

        What holds for one model only is left out unless ``model`` is that model's hash.
        """
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Cost] = {}
        with self._using(write=False) as database:
            if database is None:
                return found
            for start in range(0, len(wanted), CHUNK):
                part = wanted[start : start + CHUNK]
                part += [_row_key(key, model) for key in part if model]
                marks = ",".join("?" * len(part))
                query = f"select key, cost from measurements where key in ({marks}) order by key"
                for key, cost in database.execute(query, part).fetchall():
                    decoded = decode(cost, Cost)
                    # In this order a model's own row replaces the common one.
                    found[key.partition("@")[0]] = msgspec.structs.replace(decoded, from_store=True)
        return found

    def measurements(self) -> Iterator[Measurement]:
        """Everything measured, by key."""
        with self._using(write=False) as database:
            rows = [] if database is None else list(database["measurements"].rows_where())
        for row in sorted(rows, key=lambda r: r["key"]):
            yield Measurement(
                key=row["key"].partition("@")[0],
                cost=decode(row["cost"], Cost),
                label=row["label"],
                instance=decode(row["instance"], ToolchainInstance | None),
                device=row["device"],
                versions=json.loads(row["versions"]),
                model=row["model"],
                one_model=bool(row["one_model"]),
            )

    def constant(self, name: str) -> Any | None:
        """A machine constant (peaks, launches, hand-over costs): a JSON value, or None."""
        with self._using(write=False) as database:
            if database is None:
                return None
            rows = database.execute("select value from constants where name = ?", [name]).fetchall()
        return json.loads(rows[0][0]) if rows else None

    def rows(self, table: str, keys: Iterable[str]) -> dict[str, str]:
        """Values by key from a side table (tuning records); none where there is no such table."""
        wanted = list(keys)
        found: dict[str, str] = {}
        with self._using(write=False) as database:
            if database is None or not database[table].exists():
                return found
            for start in range(0, len(wanted), CHUNK):
                part = wanted[start : start + CHUNK]
                marks = ",".join("?" * len(part))
                query = f"select key, value from {table} where key in ({marks})"
                found.update(database.execute(query, part).fetchall())
        return found

    def has_row(self, table: str, column: str, value: str) -> bool:
        with self._using(write=False) as database:
            if database is None or not database[table].exists():
                return False
            return bool(database[table].count_where(f"{column} = ?", [value]))

    def put_row(self, table: str, row: Mapping[str, Any]) -> None:
        """Keep a row of a side table, which is made when it is not there."""
        with self._using(write=True) as database, database.conn:
            database[table].upsert(dict(row), pk="key")

    def info(self) -> StoreInfo:
        with self._using(write=False) as database:
            if database is None:
                return StoreInfo(path=str(self.path), exists=False)

            def count(column: str) -> dict[str, int]:
                query = f"select {column}, count(*) from measurements group by 1 order by 2 desc"
                return dict(database.execute(query).fetchall())

            oldest, newest = database.execute(
                "select min(measured_at), max(measured_at) from measurements"
            ).fetchone()
            return StoreInfo(
                path=str(self.path),
                exists=True,
                bytes=sum(p.stat().st_size for p in self._files() if p.exists()),
                measurements=database["measurements"].count,
                invalid=database["measurements"].count_where("state = 'invalid'"),
                constants=database["constants"].count,
                toolchains=count("toolchain"),
                devices=count("device"),
                oldest=oldest,
                newest=newest,
            )

    # ------------------------------------------------------------------ writing

    def put(self, measurement: Measurement) -> None:
        """Keep one measurement, replacing an older one of the same key."""
        self.put_many([measurement])

    def put_many(self, measurements: Iterable[Measurement]) -> None:
        """Keep measurements in one transaction."""
        rows = [_row(m) for m in measurements]
        with self._using(write=True) as database, database.conn:
            database["measurements"].upsert_all(rows, pk="key")

    def put_constant(self, name: str, value: Any) -> None:
        row = {"name": name, "value": json.dumps(value), "measured_at": now_text()}
        with self._using(write=True) as database, database.conn:
            database["constants"].upsert(row, pk="name")

    def clear(self) -> int:
        """Remove everything; the number of measurements removed. Heals a damaged file."""
        with self._lock:
            if not self.path.exists():
                return 0
            try:
                removed = self.info().measurements
            except MeasureError:
                self._remove_file()
                return 0
            # Emptied, not deleted: another engine may have it open and would write to nowhere.
            with self._using(write=True) as database:
                with database.conn:
                    database.execute("delete from measurements")
                    database.execute("delete from constants")
                    if database["tuning"].exists():
                        database.execute("delete from tuning")
                database.vacuum()
            return removed

    def _remove_file(self) -> None:
        self.close()
        try:
            for path in self._files():
                path.unlink(missing_ok=True)
        except OSError as error:
            raise self._explain(error) from error

    # ------------------------------------------------------------------ exchange

    def export(self, path: str | Path) -> int:
        """Write all measurements as JSON lines; their number. Constants stay: they are local."""
        target = Path(path)
        count = 0
        try:
            with atomic_file(target) as new, new.open("wb") as stream:
                head = {"collage_store": SCHEMA_VERSION, "exported_at": now_text()}
                stream.write(json.dumps(head).encode() + b"\n")
                for measurement in self.measurements():
                    stream.write(msgspec.json.encode(measurement) + b"\n")
                    count += 1
        except OSError as error:
            raise MeasureError(f"{target} cannot be written: {error.strerror}") from error
        return count

    def import_(self, path: str | Path) -> int:
        """Merge an exported file; of two measurements of one key the newer stays.

        Returns how many were taken. Nothing is taken from a file that is not wholly readable.
        """
        source = Path(path)
        try:
            lines = source.read_bytes().splitlines()
        except OSError as error:
            raise MeasureError(f"{source} cannot be read: {error.strerror}") from error
        try:
            version = json.loads(lines[0])["collage_store"]
        except (ValueError, IndexError, TypeError, KeyError):
            raise MeasureError(f"{source} is no export of a measurement store") from None
        if version != SCHEMA_VERSION:
            raise MeasureError(f"{source} has format {version}; this version reads 1")
        arriving: dict[tuple[str, str], Measurement] = {}
        for number, line in enumerate(lines[1:], start=2):
            try:
                measurement = decode(line, Measurement)
            except msgspec.MsgspecError as error:
                raise MeasureError(f"{source}, line {number}: {error}") from None
            model = measurement.model if measurement.one_model else ""
            arriving[measurement.key, model] = measurement
        present = {
            (m.key, m.model if m.one_model else ""): m.cost.measured_at or ""
            for m in self.measurements()
        }
        taken = [
            m for at, m in arriving.items() if present.get(at, "") < (m.cost.measured_at or "")
        ]
        self.put_many(taken)
        return len(taken)

    # ------------------------------------------------------------------ the file

    def close(self) -> None:
        with self._lock:
            database, self._database = self._database, None
            if database is not None:
                with contextlib.suppress(sqlite3.Error):
                    database.conn.close()

    def _files(self) -> tuple[Path, ...]:
        return (self.path, *(Path(f"{self.path}{end}") for end in ("-wal", "-shm")))

    @contextlib.contextmanager
    def _using(self, *, write: bool) -> Iterator[Any]:
        """The open database; None when only read and there is no file yet."""
        with self._lock:
            try:
                if self._database is None:
                    if not write and not self.path.exists():
                        yield None
                        return
                    self._database = self._open()
                yield self._database
            except (sqlite3.Error, msgspec.MsgspecError, OSError) as error:
                raise self._explain(error) from error

    def _open(self) -> Any:
        from sqlite_utils import Database

        existed = self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(self.path if existed else self.path.parent, os.W_OK)
        mode = "rwc" if writable else "ro"
        uri = f"{self.path.resolve().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=30, check_same_thread=False)
        try:
            version = connection.execute("pragma user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise MeasureError(
                    f"the measurement store {self.path} was written by a newer version of this "
                    "program; update it, or choose another folder with COLLAGE_CACHE_DIR"
                )
            if version == 0:
                # Going over to a WAL fails at once, whatever the timeout, while another does too.
                with locked(self.path.with_name(self.path.name + ".lock")):
                    self._create(connection)
            if writable:
                # NORMAL: a killed process loses nothing; only a power cut may lose the last ones.
                connection.execute("pragma synchronous=normal")
            return Database(connection)
        except BaseException:
            connection.close()
            raise

    def _create(self, connection: sqlite3.Connection) -> None:
        names = {r[0] for r in connection.execute("select name from sqlite_master").fetchall()}
        if names - {"measurements", "constants", "by_toolchain"}:
            raise MeasureError(f"{self.path} is no measurement store but some other database")
        connection.execute("pragma journal_mode=wal")
        connection.executescript(
            f"""
            begin immediate;
            create table if not exists measurements (
                key text primary key, label text, toolchain text, instance text, threads integer,
                device text, fingerprint text, versions text, model text,
                one_model integer,
                state text, median_us real, low_us real, high_us real, cold_us real,
                count integer, max_rel_error real, reason text, measured_at text, cost text);
            create table if not exists constants (
                name text primary key, value text, measured_at text);
            create index if not exists by_toolchain on measurements (toolchain);
            pragma user_version={SCHEMA_VERSION};
            commit;
            """
        )

    def _explain(self, error: Exception) -> MeasureError:
        text = str(error)
        name = f"the measurement store {self.path}"
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
        if isinstance(error, (sqlite3.DatabaseError, msgspec.MsgspecError)):
            self.close()
            return MeasureError(
                f"{name} is damaged ({text}); move the file away or run 'collage store clear'"
            )
        return MeasureError(f"{name}: {text}")


def _row_key(key: str, model: str) -> str:
    """Under which a result is kept that holds for one model only."""
    return f"{key}@{model}"


def _row(measurement: Measurement) -> Mapping[str, Any]:
    """Columns for readers with any SQLite tool; ``cost`` holds the whole record."""
    cost = msgspec.structs.replace(
        measurement.cost,
        from_store=False,
        measured_at=measurement.cost.measured_at or now_text(),
    )
    instance = measurement.instance
    return {
        "key": _row_key(measurement.key, measurement.model)
        if measurement.one_model
        else measurement.key,
        "label": measurement.label,
        "toolchain": instance.toolchain if instance else "",
        "instance": msgspec.json.encode(instance).decode(),
        "threads": instance.threads if instance else cost.threads,
        "device": measurement.device,
        "fingerprint": cost.fingerprint,
        "versions": json.dumps(measurement.versions),
        "model": measurement.model,
        "one_model": int(measurement.one_model),
        "state": cost.state,
        "median_us": cost.median_us,
        "low_us": cost.low_us,
        "high_us": cost.high_us,
        "cold_us": cost.cold_us,
        "count": cost.count,
        "max_rel_error": cost.max_rel_error,
        "reason": cost.reason,
        "measured_at": cost.measured_at,
        "cost": msgspec.json.encode(cost).decode(),
    }


def remembered(store: Store | None, name: str, make: Callable[[], Any]) -> Any:
    """A constant from the store, or made now and kept. A store that fails is no obstacle."""
    if store is not None:
        with contextlib.suppress(MeasureError):
            known = store.constant(name)
            if known is not None:
                return known
    made = make()
    if store is not None:
        with contextlib.suppress(MeasureError):
            store.put_constant(name, made)
    return made
