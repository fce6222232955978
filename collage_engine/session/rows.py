"""Defines the tables of a session's file, which people can read with any SQLite tool.

Every table has a ``json`` column with the whole record, and plain columns that repeat what people
look for in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.ranges import Figure
from collage_engine.records.refusal import Refusal
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import ShapeChoice
from collage_engine.records.toolchain import ToolchainState
from collage_engine.records.versions import SESSION_FORMAT, __version__
from collage_engine.session.document import Document

Row = dict[str, Any]


class StoredDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All of a document except the other shapes."""

    model: ModelRecord
    graph: GraphRecord
    candidates: list[CandidateRecord]
    without_candidates: dict[str, dict[int, Refusal]]
    pins: list[Pin]
    runs: list[Run]
    settings: RunSettings
    constants: dict[str, Figure]
    toolchains: list[ToolchainState]


class StoredShape(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table ``shapes``: one of the shapes that the model is placed for together."""

    choice: ShapeChoice
    document: StoredDocument | None
    """None: it is the document of the file's other tables."""


@dataclass(frozen=True)
class Table:
    """One table of a session file.

    Attributes:
        name: Its name.
        key: The column that is its primary key.
        rows: The rows of a document.
        columns: Types of columns whose first rows may hold nothing.
    """

    name: str
    key: str
    rows: Callable[[Document], Iterable[Row]]
    columns: Mapping[str, type] | None = None


def as_json(record: Any) -> str:
    """Return a record, or plain values, as JSON text."""
    return msgspec.json.encode(record).decode()


def _numbers(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes))


def _meta(document: Document) -> Iterator[Row]:
    graph = document.graph
    values = {
        "format": str(SESSION_FORMAT),
        "engine": __version__,
        "model": as_json(document.model),
        "settings": as_json(document.settings),
        "constants": as_json(document.constants),
        "not_offered": as_json(document.without_candidates),
        "toolchains": as_json(document.toolchains),
        "interface": as_json(
            {
                "inputs": graph.inputs,
                "outputs": graph.outputs,
                "input_names": graph.input_names,
                "output_names": graph.output_names,
            }
        ),
    }
    return ({"key": key, "value": value} for key, value in values.items())


def _nodes(document: Document) -> Iterator[Row]:
    calls = 0
    for node in document.graph.nodes:
        number = None
        if node.form == "call":
            number, calls = calls, calls + 1
        yield {
            "index": node.index,
            "operator": number,
            "form": node.form,
            "op": node.op,
            "name": node.name,
            "type": ", ".join(map(str, node.types)),
            "onnx_nodes": ", ".join(node.onnx_nodes),
            "json": as_json(node),
        }


def _candidates(document: Document) -> Iterator[Row]:
    for candidate in document.candidates:
        cost = candidate.cost
        yield {
            "id": candidate.id,
            "toolchain": candidate.instance.id,
            "operators": candidate.label,
            "nodes": _numbers(candidate.nodes),
            "rule": candidate.rule,
            "key": candidate.key,
            "state": cost.state,
            "median_us": cost.median_us,
            "low_us": cost.low_us,
            "high_us": cost.high_us,
            "reason": cost.reason,
            "json": as_json(candidate),
        }


def _pins(document: Document) -> Iterator[Row]:
    for position, pin in enumerate(document.pins):
        yield {
            "position": position,
            "kind": pin.kind,
            "nodes": _numbers(pin.nodes),
            "toolchain": pin.toolchain,
            "device": pin.device,
            "text": pin.text,
            "json": as_json(pin),
        }


def _runs(document: Document) -> Iterator[Row]:
    for position, run in enumerate(document.runs):
        yield {
            "position": position,
            "id": run.id,
            "name": run.name,
            "note": run.note,
            "started_at": run.started_at,
            "winner": run.winner,
            "measured_us": run.placement.measured_us if run.placement else None,
            "estimated_us": run.placement.estimated_us if run.placement else None,
            "json": as_json(run),
        }


def _shapes(document: Document) -> Iterator[Row]:
    for position, shape in enumerate(document.shapes):
        other = shape.document
        stored = None
        if other is not None:
            fields = StoredDocument.__struct_fields__
            stored = StoredDocument(**{name: getattr(other, name) for name in fields})
        last = next(reversed((other or document).runs), None)
        yield {
            "position": position,
            "shape": shape.choice.text,
            "measured_us": last.placement.measured_us if last and last.placement else None,
            "json": as_json(StoredShape(choice=shape.choice, document=stored)),
        }


TABLES = (
    Table("meta", "key", _meta),
    Table("nodes", "index", _nodes, {"operator": int, "json": str}),
    Table("candidates", "id", _candidates),
    Table("pins", "position", _pins),
    Table("runs", "position", _runs),
    Table("shapes", "position", _shapes, {"measured_us": float}),
)
"""All tables of a session's file."""
