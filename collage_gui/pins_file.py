"""Writes pins and placements into a file by the names of the model, for its next version.

JSON: ``{"collage_pins": 1, "model": …, "pins": [{"kind", "toolchain", "device", "nodes"}],
"placement": {node name: toolchain}}``. Numbers of operators change between versions of a
model; names mostly do not. What no longer matches is reported, and pins keep what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from collage_engine.drawing.formatting import counted
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.errors import UsageError
from collage_engine.records.pin import Pin, PinKind
from collage_engine.records.placement import Placement
from collage_engine.records.typed import convert, decode

VERSION = 1
"""Version of the format; files of another one are refused."""
_NAMES_SHOWN = 3
"""Nodes that are gone which a sentence names; chosen."""


class _FilePin(msgspec.Struct, frozen=True, kw_only=True):
    """A pin as the file has it, on nodes by name."""

    kind: PinKind
    nodes: list[str]
    toolchain: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class Applied:
    """The pins and the placement of a file on a graph, and what does not match."""

    pins: tuple[Pin, ...]
    placement: dict[str, str]
    problems: tuple[str, ...]
    """One sentence for each pin or node that no longer matches."""


def encode(
    graph: OperatorGraph, pins: tuple[Pin, ...], placement: Placement | None, model: str
) -> bytes:
    """Write pins and a placement by the names of the nodes.

    Args:
        graph: The graph that they are of.
        pins: The pins.
        placement: The placement, if there is one.
        model: Name of the model's file, for people who read the file.

    Returns:
        Indented JSON.
    """
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
    """Match a file's names against a graph.

    Args:
        graph: The graph, which may be a later version of the one that the file is of.
        content: The file.

    Raises:
        UsageError: The file is no file of pins, of another version, or malformed.
    """
    try:
        data: Any = decode(content)
        if not isinstance(data, dict) or "collage_pins" not in data:
            raise UsageError(no_file_of_pins("it has no 'collage_pins'"))
        version = data["collage_pins"]
        if type(version) is not int or version != VERSION:
            raise UsageError(f"this file of pins is of version {version}, not {VERSION}")
        raw_pins = convert(data.get("pins", []), list[Any])
        placement = convert(data.get("placement", {}), dict[str, str])
    except msgspec.MsgspecError as error:
        raise UsageError(no_file_of_pins(error)) from error
    by_name: dict[str, int] = {}
    for at, call in enumerate(graph.calls):
        for name in (graph.name(at), *call.onnx_nodes):
            by_name.setdefault(name, at)
    problems: list[str] = []
    pins: list[Pin] = []
    for number, raw in enumerate(raw_pins, 1):
        pin, problem = _matched(number, raw, by_name)
        if pin is not None:
            pins.append(pin)
        if problem:
            problems.append(problem)
    kept = {name: toolchain for name, toolchain in placement.items() if name in by_name}
    if len(kept) < len(placement):
        lost = len(placement) - len(kept)
        problems.append(nodes_of_placement_gone(lost, counted(len(placement), "node")))
    return Applied(tuple(pins), kept, tuple(problems))


def _matched(number: int, raw: Any, by_name: Mapping[str, int]) -> tuple[Pin | None, str]:
    """Returns a pin on the nodes that are still there, and a sentence about those that are not."""
    try:
        written = convert(raw, _FilePin)
    except msgspec.MsgspecError as error:
        raise UsageError(f"pin {number} of the file is malformed: {error}") from error
    names = written.nodes
    kept = [n for n in names if n in by_name]
    pin = Pin(
        kind=written.kind,
        nodes=tuple(sorted({by_name[n] for n in kept})),
        toolchain=written.toolchain,
        device=written.device,
        onnx_nodes=tuple(kept),
    )
    gone = [n for n in names if n not in by_name]
    if not kept:
        return None, pin_without_nodes(number, len(names))
    some = ", ".join(gone[:_NAMES_SHOWN])
    if gone and pin.kind in ("exactly", "together"):
        return None, pin_dropped(number, pin.kind, some, len(gone))
    left = max(0, len(gone) - _NAMES_SHOWN)
    return pin, pin_kept_without(number, some, left) if gone else ""


def no_file_of_pins(reason: object) -> str:
    """Says that a file holds no pins."""
    return f"this is no file of pins: {reason}"


def nodes_of_placement_gone(lost: int, nodes: str) -> str:
    """Says that nodes of a file's placement are not in the model any more."""
    return f"{lost} of {nodes} of the placement {'is' if lost == 1 else 'are'} gone."


def pin_without_nodes(number: int, nodes: int) -> str:
    """Says that none of a pin's nodes is in the model."""
    what = "its node is not" if nodes == 1 else f"none of its {nodes} nodes is"
    return f"Pin {number}: {what} in this model."


def pin_dropped(number: int, kind: str, gone: str, count: int) -> str:
    """Says that a pin means nothing without the nodes that are gone."""
    return f"Pin {number} ({kind}) was dropped, since {gone} {'is' if count == 1 else 'are'} gone."


def pin_kept_without(number: int, gone: str, left: int) -> str:
    """Says that a pin was kept on the nodes that are still there."""
    more = f" and {left} more" if left else ""
    return f"Pin {number} was kept without {gone}{more}."
