"""Keeps measurements across models, runs and days, in one SQLite file of the cache folder.

Several engines may use it at once (write-ahead log). Every measurement is committed at once,
so an engine that is killed loses none.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from collage_engine.machine.folders import cache_folder
from collage_engine.records.candidate import Cost
from collage_engine.records.event import SHOWN
from collage_engine.records.toolchain import ToolchainInstance, TuneRecord, TuneTask
from collage_engine.records.versions import STORE_EXPORT
from collage_engine.store.database import (
    can_be_written,
    copy_in_memory,
    in_words,
    open_database,
)
from collage_engine.store.keys import KeyContext
from collage_engine.support.errors import MeasureError, displayable
from collage_engine.support.files import LARGEST_TABLE, atomic_file, read_file
from collage_engine.support.typed import decode

if TYPE_CHECKING:
    from sqlite_utils import Database

T = TypeVar("T")


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cost and what a reader of the store wants to know about it."""

    key: str
    cost: Cost
    label: str = ""
    instance: ToolchainInstance | None = None
    device: str = ""
    """Description of the processor."""
    versions: dict[str, str] = {}
    model: str = ""
    """Hash of the model it was measured in."""
    one_model: bool = False
    """True: it holds for that model's values only (wrong numbers), whatever the key says."""


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What ``collage store info`` shows."""

    path: str
    exists: bool
    bytes: int = 0
    measurements: int = 0
    invalid: int = 0
    constants: int = 0
    toolchains: dict[str, int] = {}
    devices: dict[str, int] = {}
    oldest: str | None = None
    newest: str | None = None
    writable: bool = True
    """Whether measurements can be added to it here."""
    kernels: int = 0
    """Compiled kernels that are kept on this machine."""
    kernel_bytes: int = 0
    """Bytes of their files."""


def now_text() -> str:
    """Return this moment as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


_LOG = logging.getLogger(__name__)

FILE_NAME = "measurements.db"
ADVICE = "check its permissions, or choose another folder with COLLAGE_CACHE_DIR"


class Store:
    """Costs by key, and named constants of this machine. Safe to use from several threads.

    Every method raises ``MeasureError`` with one clear sentence when the file is damaged, is
    no store, or is of another version, or when the disk is full. Where there is no file, nothing
    is known. Where the file or its folder cannot be written, a copy in memory is used instead:
    ``notice`` says so, what is put lasts as long as this object, and ``import_`` and ``clear``
    refuse to work.

    Args:
        path: The file; by default the one in the user's cache folder.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else cache_folder() / FILE_NAME
        self.notice: str | None = None
        """What the user should know of the file: that it cannot be written, and what follows."""
        self._lock = threading.RLock()
        self._database: Database | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, key: str, model: str = "") -> Cost | None:
        """Return the stored cost of one key; see ``get_many``."""
        return self.get_many([key], model).get(key)

    def get_many(self, keys: Iterable[str], model: str = "") -> dict[str, Cost]:
        """Return the stored costs among these keys, marked ``from_store``.

        Args:
            keys: Measurement keys (``KeyContext.key``).
            model: A model's hash: results that hold for this model only count too.
        """
        row_keys = list(dict.fromkeys(keys))
        row_keys += [f"{key}@{model}" for key in row_keys if model]
        query = (
            "select key, cost from measurements"
            " where key in (select value from json_each(?)) order by key"
        )
        costs: dict[str, Cost] = {}
        for key, cost in self._select(query, json.dumps(row_keys)):
            decoded = _usable(key, cost)
            if decoded is not None:  # In this order a model's own row replaces the common.
                stored = msgspec.structs.replace(decoded, from_store=True)
                costs[key.partition("@")[0]] = stored
        return costs

    def measurements(self) -> Iterator[Measurement]:
        """Yield everything that was measured, by key."""
        with self._reading() as database:
            rows = [] if database is None else list(database["measurements"].rows_where())
        for row in sorted(rows, key=lambda r: r["key"]):
            cost = _usable(row["key"], row["cost"])
            if cost is None:
                continue
            yield Measurement(
                key=row["key"].partition("@")[0],
                cost=cost,
                label=row["label"],
                instance=decode(row["instance"], ToolchainInstance | None),
                device=row["device"],
                versions=json.loads(row["versions"]),
                model=row["model"],
                one_model=bool(row["one_model"]),
            )

    def constant(self, name: str) -> Any | None:
        """Return a machine constant (launches, transition costs): a JSON value, or None."""
        rows = self._select("select value from constants where name = ?", name)
        return json.loads(rows[0][0]) if rows else None

    def tuning_values(self, keys: Iterable[str]) -> dict[str, str]:
        """Return what tuning kept under these keys, as JSON text (``TuningRecords``)."""
        query = "select key, value from tuning where key in (select value from json_each(?))"
        return dict(self._select(query, json.dumps(list(keys))))

    def has_tuning(self, context: str) -> bool:
        """Return whether anything was tuned in a context (``tuning_records.context_hash``)."""
        return bool(self._select("select 1 from tuning where context = ? limit 1", context))

    def info(self) -> StoreInfo:
        """Return what the store holds, in numbers."""
        with self._reading() as database:
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
                writable=self.notice is None,
            )

    def export(self, path: str | Path, since: str = "") -> int:
        """Write measurements as JSON lines; constants stay, since they are this machine's own.

        Args:
            path: The file to write.
            since: Leave out what was measured before this moment, as ``now_text`` writes it; empty:
                write all.

        Returns:
            How many measurements were written.
        """
        target = Path(path)
        count = 0
        try:
            with atomic_file(target) as new, new.open("wb") as stream:
                head = {"collage_store": STORE_EXPORT, "exported_at": now_text()}
                stream.write(json.dumps(head).encode() + b"\n")
                for measurement in self.measurements():
                    if _moment(measurement.cost) < since:
                        continue
                    stream.write(msgspec.json.encode(measurement) + b"\n")
                    count += 1
        except OSError as error:
            raise MeasureError(f"{target} cannot be written: {error.strerror}") from error
        return count

    # -- the file ----------------------------------------------------------------------

    def close(self) -> None:
        """Close the file; the next question opens it again."""
        with self._lock:
            database, self._database = self._database, None
            if database is not None:
                with contextlib.suppress(sqlite3.Error):
                    database.conn.close()

    def _files(self) -> tuple[Path, ...]:
        return (self.path, *(Path(f"{self.path}{end}") for end in ("-wal", "-shm")))

    def _open(self) -> Database:
        self.notice = None
        if can_be_written(self.path):
            return open_database(self.path)
        self.notice = (
            f"the measurement store {self.path} cannot be written: what it holds is used, and what "
            f"is measured now is not kept; {ADVICE}"
        )
        _LOG.warning("%s", self.notice, extra=SHOWN)
        return copy_in_memory(self.path)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Database | None]:
        """Return the open database; None where there is no file yet."""
        with self._lock, self._in_words():
            if self._database is None and self.path.exists():
                self._database = self._open()
            yield self._database

    def _select(self, query: str, parameter: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none where there is no file yet."""
        with self._reading() as database:
            return [] if database is None else database.execute(query, [parameter]).fetchall()

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        """Raise errors of SQLite and of the system as sentences."""
        try:
            yield
        except (sqlite3.Error, msgspec.MsgspecError, OSError) as error:
            self.close()
            raise in_words(error, self.path) from error

    # -- what changes it ---------------------------------------------------------------

    def check(self) -> str | None:
        """Open the store; what the user should know of it (``notice``), None if nothing."""
        with self._writing():
            return self.notice

    def put(self, measurement: Measurement) -> None:
        """Keep one measurement, replacing an older one of the same key."""
        self.put_many([measurement])

    def put_many(self, measurements: Iterable[Measurement]) -> None:
        """Keep measurements in one transaction."""
        rows = [_row(measurement) for measurement in measurements]
        self._upsert("measurements", rows)

    def put_constant(self, name: str, value: Any) -> None:
        """Keep a constant of this machine, any JSON value, replacing an older one."""
        row = {"name": name, "value": json.dumps(value), "measured_at": now_text()}
        self._upsert("constants", [row])

    def put_tuning(self, key: str, value: str, *, context: str = "", workload: str = "") -> None:
        """Keep what tuning found, as JSON text, replacing an older one."""
        row = {
            "key": key,
            "context": context,
            "workload": workload,
            "value": value,
            "stored_at": now_text(),
        }
        self._upsert("tuning", [row])

    def _upsert(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        """Write rows, which replace those of the same key, in one transaction."""
        with self._writing() as database, database.conn:
            database.table(table).upsert_all(rows, pk="name" if table == "constants" else "key")

    def clear(self) -> int:
        """Remove everything; the number of measurements removed. Heals a damaged file."""
        with self._lock:
            if not self.path.exists():
                return 0
            try:
                removed = self.info().measurements
            except MeasureError:
                self.close()
                with self._in_words():
                    for path in self._files():
                        path.unlink(missing_ok=True)
                return 0
            self._must_be_writable()
            # Emptied, not deleted: another engine may have it open and would write to nowhere.
            with self._writing() as database:
                with database.conn:
                    for table in ("measurements", "constants", "tuning"):
                        database.execute(f"delete from {table}")
                database.vacuum()
            return removed

    def import_(self, path: str | Path) -> int:
        """Merge an exported file; of two measurements of one key the newer stays.

        Returns how many were taken. Nothing is taken from a file that is not wholly readable.
        """
        self._must_be_writable()
        arriving = {_row_key(each): each for each in read_export(Path(path))}
        present = {
            _row_key(measurement): _moment(measurement.cost) for measurement in self.measurements()
        }
        taken = [m for key, m in arriving.items() if present.get(key, "") < _moment(m.cost)]
        self.put_many(taken)
        return len(taken)

    def _must_be_writable(self) -> None:
        if not can_be_written(self.path):
            raise MeasureError(f"the measurement store {self.path} cannot be written; {ADVICE}")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Database]:
        """Return the open database, made if there is none yet."""
        with self._lock, self._in_words():
            if self._database is None:
                self._database = self._open()
            yield self._database


def _usable(key: str, text: str) -> Cost | None:
    """Return a stored cost; None where it cannot be one, which is measured again then."""
    try:
        cost = decode(text, Cost)
        wrong = cost.fault
    except msgspec.ValidationError as error:
        wrong = str(error)
    if wrong is None:
        return cost
    _LOG.warning("the stored cost %s is not used: %s", key, wrong)
    return None


def _moment(cost: Cost) -> str:
    """Return when a cost was measured, in UTC; empty where that is not known."""
    return cost.measured_at or ""


def _row_key(measurement: Measurement) -> str:
    """Return a measurement's key in the table; the model is in it where it holds for that only."""
    key = measurement.key
    return f"{key}@{measurement.model}" if measurement.one_model else key


def _row(measurement: Measurement) -> dict[str, Any]:
    """Return the columns for readers with any SQLite tool.

    ``cost`` holds the whole record.
    """
    cost = msgspec.structs.replace(
        measurement.cost,
        from_store=False,
        measured_at=measurement.cost.measured_at or now_text(),
    )
    instance = measurement.instance
    return {
        "key": _row_key(measurement),
        "label": measurement.label,
        "toolchain": instance.toolchain if instance else "",
        "instance": msgspec.json.encode(instance).decode(),
        "threads": instance.threads if instance else None,
        "device": measurement.device,
        "versions": json.dumps(measurement.versions),
        "model": measurement.model,
        "one_model": int(measurement.one_model),
        "state": cost.state,
        "median_us": cost.median_us,
        "low_us": cost.low_us,
        "high_us": cost.high_us,
        "count": cost.count,
        "max_rel_error": cost.max_rel_error,
        "reason": cost.reason,
        "measured_at": cost.measured_at,
        "cost": msgspec.json.encode(cost).decode(),
    }


def read_export(source: Path) -> Iterator[Measurement]:
    """Yield the measurements of an exported file.

    Raises:
        MeasureError: The file cannot be read, is no export, is of another format, or holds
            something that no measurement can be; the sentence names the line.
    """
    try:
        lines = io.BytesIO(read_file(source, LARGEST_TABLE))
    except OSError as error:
        raise MeasureError(f"{source} cannot be read: {error.strerror}") from error
    try:
        version = json.loads(next(lines))["collage_store"]
    except (ValueError, StopIteration, TypeError, KeyError, RecursionError):
        raise MeasureError(f"{source} is no export of a measurement store") from None
    if version != STORE_EXPORT or type(version) is not int:
        raise MeasureError(
            f"{source} has format {displayable(repr(version))}; this version reads format "
            f"{STORE_EXPORT} only"
        )
    for number, line in enumerate(lines, start=2):
        try:
            measurement = decode(line, Measurement)
        except msgspec.MsgspecError as error:
            raise MeasureError(f"{source}, line {number}: {error}") from None
        wrong = _fault(measurement)
        if wrong:
            raise MeasureError(f"{source}, line {number}: {wrong}")
        yield measurement


def _fault(measurement: Measurement) -> str | None:
    """Return why a measurement cannot be taken; None: it can."""
    if not measurement.key:
        return "it has no key"
    if measurement.cost.state == "unknown":
        return "its cost is not known"
    return measurement.cost.fault


def context_hash(context: KeyContext, toolchain: str) -> str:
    """Return a hash of all that a record holds for: versions, sources, target and device."""
    parts = (
        toolchain,
        context.versions.get(toolchain, ""),
        context.sources.get(toolchain, ""),
        context.tvm_version,
        context.target,
        context.fingerprint,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class TuningRecords:
    """Records and task lists of one toolchain on this device, versions as they are.

    Raises ``MeasureError`` as the store does.
    """

    def __init__(self, store: Store, context: KeyContext, toolchain: str) -> None:
        self._store = store
        self._context = context_hash(context, toolchain)

    def records(self, workloads: Iterable[str]) -> dict[str, TuneRecord]:
        """Return what is known of these workloads."""
        return self._read("record", workloads, TuneRecord)

    def put(self, record: TuneRecord) -> None:
        """Keep a record, replacing an older one of the same workload."""
        self._write("record", record.workload, record, self._context, record.workload)

    def any(self) -> bool:
        """Return whether anything was ever tuned under these versions, on this device."""
        return self._store.has_tuning(self._context)

    def tasks(self, candidate_keys: Iterable[str]) -> dict[str, list[TuneTask]]:
        """Return what candidates have to tune, by measurement key, where it was listed before."""
        return self._read("tasks", candidate_keys, list[TuneTask])

    def put_tasks(self, candidate_key: str, tasks: Sequence[TuneTask]) -> None:
        """Keep what a candidate has to tune."""
        self._write("tasks", candidate_key, tasks)

    def _key(self, kind: str, name: str) -> str:
        return hashlib.sha256(f"{self._context}\0{kind}\0{name}".encode()).hexdigest()

    def _read(self, kind: str, names: Iterable[str], value_type: type[T]) -> dict[str, T]:
        by_key = {self._key(kind, name): name for name in names}
        values = self._store.tuning_values(by_key)
        return {by_key[key]: decode(text, value_type) for key, text in values.items()}

    def _write(
        self, kind: str, name: str, value: object, context: str = "", workload: str = ""
    ) -> None:
        text = msgspec.json.encode(value).decode()
        self._store.put_tuning(self._key(kind, name), text, context=context, workload=workload)
