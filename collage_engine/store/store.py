"""Keeps measurements across models, runs and days, in one SQLite file of the cache folder.

Several engines may use it at once (write-ahead log). Every measurement is committed at once,
so an engine that is killed loses none.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from collage_engine.machine.folders import cache_folder
from collage_engine.records.candidate import Cost
from collage_engine.records.event import SHOWN
from collage_engine.records.toolchain import ToolchainInstance, TuneRecord, TuneTask
from collage_engine.records.versions import STORE_EXPORT, STORE_SCHEMA
from collage_engine.store.keys import KeyContext, constant_name
from collage_engine.support.errors import InvalidValue, MeasureError, displayable
from collage_engine.support.files import LARGEST_TABLE, atomic_file, locked, read_file
from collage_engine.support.time_limits import ANSWER_S
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

    def __post_init__(self) -> None:
        """Raise ``InvalidValue`` where it says nothing of a cost."""
        if not self.key:
            raise InvalidValue("it has no key")
        if self.cost.state == "unknown":
            raise InvalidValue("its cost is not known")
        if self.cost.state == "invalid" and not self.cost.reason:
            raise InvalidValue("it is invalid without a reason")
        if self.cost.usable and self.cost.us is None:
            raise InvalidValue("it is measured without a time")


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
TUNED = "tuned"
"""How the names of constants begin that tuning keeps."""
ADVICE = "check its permissions, or choose another folder with COLLAGE_CACHE_DIR"


class Store(contextlib.AbstractContextManager["Store"]):
    """Costs by key, and named constants of this machine. Safe to use from several threads.

    Every method raises ``MeasureError`` with one clear sentence when the file is damaged, is no
    store, or is of another version, or when the disk is full. Where the file or its folder cannot
    be written, a copy in memory is used instead: ``notice`` says so, what is put lasts as long as
    this object, and ``import_`` and ``clear`` refuse to work.

    Args:
        path: The file; by default the one in the user's cache folder.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else cache_folder() / FILE_NAME
        self.notice: str | None = None
        """What the user should know of the file: that it cannot be written, and what follows."""
        self._lock = threading.RLock()
        self._database: Database | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_many(self, keys: Iterable[str], model: str = "") -> dict[str, Cost]:
        """Return the stored costs among these keys, marked ``from_store``.

        Args:
            keys: Measurement keys (``KeyContext.key``).
            model: A model's hash: results that hold for this model only count too.
        """
        row_keys = list(dict.fromkeys(keys))
        row_keys += [f"{key}@{model}" for key in row_keys if model]
        costs: dict[str, Cost] = {}
        # In this order a model's own row replaces the common one.
        for stored in _usable(sorted(self._values("measurements", row_keys).items())):
            costs[stored.key] = msgspec.structs.replace(stored.cost, from_store=True)
        return costs

    def measurements(self) -> Iterator[Measurement]:
        """Yield everything that was measured, by key."""
        yield from _usable(self._select("select key, value from measurements order by key"))

    def constants(self, names: Iterable[str]) -> dict[str, str]:
        """Return what is kept under these names (``put_constant``), as JSON text."""
        return self._values("constants", names)

    def constant(self, name: str) -> Any | None:
        """Return a machine constant (launches, transition costs): a JSON value, or None."""
        text = self.constants([name]).get(name)
        return None if text is None else json.loads(text)

    def info(self) -> StoreInfo:
        """Return what the store holds, in numbers."""
        if not self.path.exists():
            return StoreInfo(path=str(self.path), exists=False)
        held = list(self.measurements())
        toolchains = Counter(m.instance.toolchain if m.instance else "" for m in held)
        moments = [_moment(m.cost) for m in held]
        query = f"select count(*) from constants where key not like '{TUNED}%'"
        return StoreInfo(
            path=str(self.path),
            exists=True,
            bytes=sum(p.stat().st_size for p in self._files() if p.exists()),
            measurements=len(held),
            invalid=sum(m.cost.state == "invalid" for m in held),
            constants=self._select(query)[0][0],
            toolchains=dict(toolchains.most_common()),
            devices=dict(Counter(m.device for m in held).most_common()),
            oldest=min(moments, default=None),
            newest=max(moments, default=None),
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
    def _opened(self) -> Iterator[Database]:
        """Return the open database, made if there is none yet."""
        with self._lock, self._in_words():
            if self._database is None:
                self._database = self._open()
            yield self._database

    def _select(self, query: str, *parameters: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._opened() as database:
            return database.execute(query, parameters).fetchall()

    def _values(self, table: str, keys: Iterable[str]) -> dict[str, str]:
        """Return the values of those of these keys that a table has."""
        query = f"select key, value from {table} where key in (select value from json_each(?))"
        return dict(self._select(query, json.dumps(list(keys))))

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        """Raise errors of SQLite and of the system as sentences."""
        try:
            yield
        except (sqlite3.Error, msgspec.MsgspecError, OSError) as error:
            self.close()
            text = getattr(error, "strerror", None) or str(error)
            raise MeasureError(
                f"the measurement store {self.path} cannot be used: {text}; check its permissions "
                "and the disk, choose another folder with COLLAGE_CACHE_DIR, or run 'collage store "
                "clear' if it is damaged"
            ) from error

    # -- what changes it ---------------------------------------------------------------

    def check(self) -> str | None:
        """Open the store; what the user should know of it (``notice``), None if nothing."""
        with self._opened():
            return self.notice

    def put(self, measurement: Measurement) -> None:
        """Keep one measurement, replacing an older one of the same key."""
        self.put_many([measurement])

    def put_many(self, measurements: Iterable[Measurement]) -> None:
        """Keep measurements in one transaction."""
        self._upsert("measurements", {_row_key(m): _as_stored(m) for m in measurements})

    def put_constant(self, name: str, value: Any) -> None:
        """Keep a constant of this machine, any JSON value, replacing an older one."""
        self._upsert("constants", {name: value})

    def _upsert(self, table: str, values: Mapping[str, Any]) -> None:
        """Write values as JSON, which replace those of the same key, in one transaction."""
        rows = [{"key": k, "value": msgspec.json.encode(v).decode()} for k, v in values.items()]
        with self._opened() as database, database.conn:
            database.table(table).upsert_all(rows, pk="key")

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
            with self._opened() as database:
                with database.conn:
                    for table in ("measurements", "constants"):
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


def _usable(rows: Iterable[tuple[Any, ...]]) -> Iterator[Measurement]:
    """Yield the measurements of rows (key, value); what cannot be one is measured again."""
    for key, text in rows:
        try:
            yield decode(text, Measurement)
        except msgspec.MsgspecError as error:
            _LOG.warning("the stored cost %s is not used: %s", key, error)


def _moment(cost: Cost) -> str:
    """Return when a cost was measured, in UTC; empty where that is not known."""
    return cost.measured_at or ""


def _row_key(measurement: Measurement) -> str:
    """Return a measurement's key in the table; the model is in it where it holds for that only."""
    key = measurement.key
    return f"{key}@{measurement.model}" if measurement.one_model else key


def _as_stored(measurement: Measurement) -> Measurement:
    moment = measurement.cost.measured_at or now_text()
    cost = msgspec.structs.replace(measurement.cost, from_store=False, measured_at=moment)
    return msgspec.structs.replace(measurement, cost=cost)


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
            yield decode(line, Measurement)
        except msgspec.MsgspecError as error:
            raise MeasureError(f"{source}, line {number}: {error}") from None


class TuningRecords:
    """Records and task lists of one toolchain on this device, versions as they are.

    Raises ``MeasureError`` as the store does.
    """

    def __init__(self, store: Store, context: KeyContext, toolchain: str) -> None:
        self._store = store
        self._facts = [
            toolchain,
            context.versions.get(toolchain, ""),
            context.sources.get(toolchain, ""),
            context.tvm_version,
            context.target,
            context.fingerprint,
        ]

    def records(self, workloads: Iterable[str]) -> dict[str, TuneRecord]:
        """Return what is known of these workloads."""
        return self._read("record", workloads, TuneRecord)

    def put(self, record: TuneRecord) -> None:
        """Keep a record, replacing an older one of the same workload."""
        self._store.put_constant(self._name("record", record.workload), record)
        self._store.put_constant(self._name("any", ""), True)

    def any(self) -> bool:
        """Return whether anything was ever tuned under these versions, on this device."""
        return self._store.constant(self._name("any", "")) is not None

    def tasks(self, candidate_keys: Iterable[str]) -> dict[str, list[TuneTask]]:
        """Return what candidates have to tune, by measurement key, where it was listed before."""
        return self._read("tasks", candidate_keys, list[TuneTask])

    def put_tasks(self, candidate_key: str, tasks: Sequence[TuneTask]) -> None:
        """Keep what a candidate has to tune."""
        self._store.put_constant(self._name("tasks", candidate_key), tasks)

    def _name(self, kind: str, of: str) -> str:
        return constant_name(TUNED, [*self._facts, kind, of])

    def _read(self, kind: str, of: Iterable[str], value_type: type[T]) -> dict[str, T]:
        by_name = {self._name(kind, each): each for each in of}
        texts = self._store.constants(by_name)
        return {by_name[name]: decode(text, value_type) for name, text in texts.items()}


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
            has_tables = connection.execute("select 1 from sqlite_master").fetchone() is not None
            if not has_tables and not _version_of(connection):
                connection.execute("pragma journal_mode = wal")
                _make_tables(connection)  # a transaction that fails ends with the connection
        # NORMAL: a killed process loses nothing; only a power cut may lose the last ones.
        connection.execute("pragma synchronous = normal")
        _check(connection, path)
        return Database(connection)
    except BaseException:
        connection.close()
        raise


def copy_in_memory(path: Path) -> Database:
    """Open a copy in memory of a store whose file, or whose folder, cannot be written.

    SQLite reads a database with a write-ahead log only where it can make a file beside it, and all
    that a running or killed engine has kept may be in the log. So the file and its log are copied
    to a folder for temporary files first. What is written to the copy ends with the process.

    Args:
        path: The file; where there is none, the copy is empty.

    Raises:
        MeasureError: The file is of another version, or is no store.
        sqlite3.Error: The file is damaged.
        OSError: The file cannot be read, or there is no folder for temporary files.
    """
    from sqlite_utils import Database

    copy = sqlite3.connect(":memory:", check_same_thread=False)
    if not path.exists():
        _make_tables(copy)
        return Database(copy)
    with tempfile.TemporaryDirectory(prefix="collage-store-") as folder:
        copied = Path(folder) / FILE_NAME
        for end in ("", "-wal"):
            source = Path(f"{path}{end}")
            if source.exists():
                shutil.copyfile(source, f"{copied}{end}")
        with contextlib.closing(sqlite3.connect(copied)) as connection:
            _check(connection, path)
            connection.backup(copy)
    return Database(copy)


def _version_of(connection: sqlite3.Connection) -> int:
    """Return the version of an open store; 0 for an empty file and other programs' databases."""
    return int(connection.execute("pragma user_version").fetchone()[0])


def _make_tables(connection: sqlite3.Connection) -> None:
    """Fill an empty database with the tables of a store, in one transaction."""
    script = f"begin immediate; {TABLES} pragma user_version = {STORE_SCHEMA}; commit;"
    connection.executescript(script)


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
