"""Pins and placements in a file, by the names of the model, for its next version.

JSON: ``{"collage_pins": 1, "model": …, "pins": [{"kind", "toolchain", "device", "nodes"}],
"placement": {node name: toolchain}}``. Numbers of operators change between versions of a
model; names mostly do not. What no longer matches is reported, and pins keep what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.words import counted
from collage_engine.records.errors import UsageError
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Placement
from collage_engine.records.typed import convert, decode

VERSION = 1


@dataclass(frozen=True)
class Applied:
    pins: tuple[Pin, ...]
    placement: dict[str, str]
    problems: tuple[str, ...]
    """One sentence for each pin or node that no longer matches."""


def to_text(
    graph: OperatorGraph, pins: tuple[Pin, ...], placement: Placement | None, model: str
) -> bytes:
    named = [
        {
            "kind": p.kind,
            "toolchain": p.toolchain,
            "device": p.device,
            "nodes": [graph.name(n) for n in p.nodes],
        }
        for p in pins
    ]
    where = (
        {graph.name(n): p.toolchain for p in placement.partitions for n in p.nodes}
        if placement
        else {}
    )
    document = {"collage_pins": VERSION, "model": model, "pins": named, "placement": where}
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def apply(graph: OperatorGraph, content: bytes) -> Applied:
    """Match a file's names against a graph. Raises UsageError for what is no such file."""
    try:
        data: Any = decode(content)
        if not isinstance(data, dict) or "collage_pins" not in data:
            raise UsageError("this is no file of pins: it has no 'collage_pins'")
        if data["collage_pins"] != VERSION:
            raise UsageError(
                f"this file of pins is of version {data['collage_pins']}, not {VERSION}"
            )
        raw_pins = list(data.get("pins", []))
        placement = convert(data.get("placement", {}), dict[str, str])
    except msgspec.MsgspecError as error:
        raise UsageError(f"this is no file of pins: {error}") from error
    by_name: dict[str, int] = {}
    for at, call in enumerate(graph.calls):
        for name in (graph.name(at), *call.onnx_nodes):
            by_name.setdefault(name, at)
    problems: list[str] = []
    pins: list[Pin] = []
    for number, raw in enumerate(raw_pins, 1):
        try:
            names = convert(raw["nodes"], list[str])
            found = [n for n in names if n in by_name]
            pin = Pin(
                kind=convert(raw["kind"], type_of_kind()),
                nodes=tuple(sorted({by_name[n] for n in found})),
                toolchain=raw.get("toolchain"),
                device=raw.get("device"),
                onnx_nodes=tuple(found),
            )
        except (KeyError, TypeError, msgspec.MsgspecError) as error:
            raise UsageError(f"pin {number} of the file is malformed: {error}") from error
        gone = [n for n in names if n not in by_name]
        if not found:
            what = "its node is not" if len(names) == 1 else f"none of its {len(names)} nodes is"
            problems.append(f"pin {number}: {what} in this model")
            continue
        if gone and pin.kind in ("exactly", "together"):
            problems.append(
                f"pin {number} ({pin.kind}): dropped, since {', '.join(gone[:3])} "
                f"{'is' if len(gone) == 1 else 'are'} gone"
            )
            continue
        if gone:
            problems.append(
                f"pin {number}: kept without {', '.join(gone[:3])}"
                + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
            )
        pins.append(pin)
    kept = {name: toolchain for name, toolchain in placement.items() if name in by_name}
    if len(kept) < len(placement):
        lost = len(placement) - len(kept)
        problems.append(
            f"placement: {lost} of {counted(len(placement), 'node')} "
            f"{'is' if lost == 1 else 'are'} gone"
        )
    return Applied(tuple(pins), kept, tuple(problems))


def type_of_kind() -> Any:
    from collage_engine.records.pin import PinKind

    return PinKind
