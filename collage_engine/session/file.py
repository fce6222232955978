"""Reading and writing ``*.collage``: a SQLite file that any SQLite tool can read.

Every table has plain columns for people and a ``json`` column that is decoded into records;
the columns repeat what is in the JSON, so that ``select`` answers without the explorer. A file
is written beside its final name and renamed, so that it is never half-written.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import sqlite_utils

from collage_engine import __version__
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.errors import SessionError
from collage_engine.records.files import atomic_file
from collage_engine.records.graph import GraphRecord, ModelRecord, Node
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_engine.records.typed import decode
from collage_engine.records.versions import SESSION_FORMAT
from collage_engine.session.document import Document

T = TypeVar("T")


def _json(record: Any) -> str:
    return msgspec.json.encode(record).decode()


def save_session(document: Document, path: str | Path) -> None:
    """Write the document to ``path``, replacing it. Raises SessionError (disk full, no folder)."""
    path = Path(path)
    try:
        with atomic_file(path) as new:
            _write(document, str(new))
    except (OSError, sqlite3.Error, UnicodeError) as error:
        raise SessionError(f"cannot write the session {path}: {error}") from error


def _write(document: Document, path: str) -> None:
    db = sqlite_utils.Database(path)
    # The file is new and unnamed until the rename: no journal is needed to protect it.
    db.conn.execute("pragma journal_mode = off")
    db.conn.execute("pragma synchronous = off")
    db.table("meta").insert_all(
        [
            {"key": "format", "value": str(SESSION_FORMAT)},
            {"key": "engine", "value": __version__},
            {"key": "model", "value": _json(document.model)},
            {"key": "settings", "value": _json(document.settings)},
            {"key": "constants", "value": _json(document.constants)},
            {"key": "not_offered", "value": _json(document.not_offered)},
            {"key": "toolchains", "value": _json(document.toolchains)},
            {
                "key": "interface",
                "value": _json(
                    {
                        "inputs": document.graph.inputs,
                        "outputs": document.graph.outputs,
                        "input_names": document.graph.input_names,
                        "output_names": document.graph.output_names,
                    }
                ),
            },
        ],
        pk="key",
    )
    calls = 0
    rows = []
    for node in document.graph.nodes:
        number = None
        if node.form == "call":
            number, calls = calls, calls + 1
        rows.append(
            {
                "index": node.index,
                "operator": number,
                "form": node.form,
                "op": node.op,
                "name": node.name,
                "type": ", ".join(map(str, node.types)),
                "onnx_nodes": ", ".join(node.onnx_nodes),
                "json": _json(node),
            }
        )
    db.table("nodes").insert_all(rows, pk="index", columns={"operator": int, "json": str})
    _insert(
        db,
        "candidates",
        "id",
        [
            {
                "id": c.id,
                "toolchain": c.instance.id,
                "operators": c.label,
                "nodes": ",".join(map(str, c.nodes)),
                "rule": c.rule,
                "key": c.key,
                "state": c.cost.state,
                "median_us": c.cost.median_us,
                "low_us": c.cost.low_us,
                "high_us": c.cost.high_us,
                "reason": c.cost.reason,
                "json": _json(c),
            }
            for c in document.candidates
        ],
    )
    measured = {c.key: c for c in document.candidates if c.key and c.cost.state != "unknown"}
    _insert(
        db,
        "measurements",
        "key",
        [
            {
                "key": key,
                "toolchain": c.instance.id,
                "operators": c.label,
                "state": c.cost.state,
                "median_us": c.cost.median_us,
                "repeats": c.cost.count,
                "threads": c.cost.threads,
                "measured_at": c.cost.measured_at,
                "fingerprint": c.cost.fingerprint,
                "reason": c.cost.reason,
            }
            for key, c in measured.items()
        ],
    )
    _insert(
        db,
        "pins",
        "position",
        [
            {
                "position": position,
                "kind": pin.kind,
                "nodes": ",".join(map(str, pin.nodes)),
                "toolchain": pin.toolchain,
                "device": pin.device,
                "text": pin.text,
                "json": _json(pin),
            }
            for position, pin in enumerate(document.pins)
        ],
    )
    _insert(
        db,
        "runs",
        "position",
        [
            {
                "position": position,
                "id": run.id,
                "name": run.name,
                "note": run.note,
                "started_at": run.started_at,
                "winner": run.winner,
                "measured_us": run.placement.measured_us if run.placement else None,
                "estimated_us": run.placement.estimated_us if run.placement else None,
                "json": _json(run),
            }
            for position, run in enumerate(document.runs)
        ],
    )
    _insert(
        db,
        "placements",
        None,
        [
            {
                "run": run.id,
                "partition": part.id,
                "toolchain": part.toolchain,
                "config": _json(part.config),
                "nodes": ",".join(map(str, part.nodes)),
                "onnx_nodes": ", ".join(part.onnx_nodes),
                "estimated_us": part.estimated_us,
                "in_place_us": part.in_place_us,
            }
            for run in document.runs
            if run.placement
            for part in run.placement.partitions
        ],
    )
    db.conn.commit()
    db.close()


def _insert(
    db: sqlite_utils.Database, table: str, key: str | None, rows: list[dict[str, Any]]
) -> None:
    if rows:
        db.table(table).insert_all(rows, pk=key)
    else:
        columns: dict[str, Any] = {"json": str}
        if key:
            columns = {key: str, **columns}
        db.table(table).create(columns, pk=key)


def load_session(path: str | Path) -> tuple[Document, str | None]:
    """Read a session; the second value is a note when it may only be read (another version).

    Raises SessionError with a sentence when it is no session, or too new to be understood.
    """
    path = Path(path)
    if not path.is_file():
        raise SessionError(f"there is no session file {path}")
    try:
        connection = sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True)
        try:
            return _read(connection, path)
        finally:
            connection.close()
    except (sqlite3.Error, msgspec.MsgspecError, KeyError) as error:
        raise SessionError(f"{path} is not a readable Collage session: {error}") from error


def _read(connection: sqlite3.Connection, path: Path) -> tuple[Document, str | None]:
    try:
        meta = dict(connection.execute("select key, value from meta"))
        version = int(meta["format"])
    except (sqlite3.Error, KeyError, ValueError) as error:
        raise SessionError(f"{path} is not a Collage session file") from error
    note = None
    if version > SESSION_FORMAT:
        note = (
            f"{path.name} was written by a newer Collage Explorer (session format {version}, this "
            f"one writes {SESSION_FORMAT}); it is open for reading only, save a copy to change it"
        )
    try:
        document = _decode(connection, meta)
    except (sqlite3.Error, msgspec.MsgspecError, KeyError) as error:
        if note is None:
            raise
        raise SessionError(
            f"{path} has session format {version} and cannot be understood by this explorer, "
            f"which reads format {SESSION_FORMAT}: open it with the version that wrote it "
            f"({meta.get('engine', 'unknown')})"
        ) from error
    return document, note


def _decode(connection: sqlite3.Connection, meta: dict[str, str]) -> Document:
    def all_of(table: str, kind: type[T], order: str = "rowid") -> list[T]:
        found = connection.execute(f"select json from {table} order by {order}")
        return [decode(row[0], kind) for row in found]

    interface = decode(meta["interface"])
    graph = GraphRecord(
        nodes=tuple(all_of("nodes", Node, '"index"')),
        inputs=tuple(interface["inputs"]),
        outputs=tuple(interface["outputs"]),
        input_names=tuple(interface["input_names"]),
        output_names=tuple(interface["output_names"]),
    )
    runs = all_of("runs", Run, "position")
    if "toolchains" in meta:
        toolchains = decode(meta["toolchains"], list[ToolchainState])
    else:  # an older explorer kept them with the runs only
        toolchains = list(runs[-1].toolchains) if runs else []
    return Document(
        model=decode(meta["model"], ModelRecord),
        graph=graph,
        candidates=all_of("candidates", CandidateRecord),
        not_offered=decode(meta["not_offered"], dict[str, dict[int, str]]),
        pins=all_of("pins", Pin, "position"),
        runs=runs,
        settings=decode(meta["settings"], RunSettings),
        constants=decode(meta["constants"], dict[str, float]),
        toolchains=toolchains,
    )
