"""Pins as people write them: ``'GLOB[,GLOB]=WHAT'``, exact names in double quotes where needed."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.pin import Pin, PinKind
from collage_engine.support.errors import UsageError

HOW_PINS_ARE_WRITTEN = (
    "write 'GLOB[,GLOB]=WHAT' with WHAT one of NAME, !NAME, exactly, exactly:NAME, together, "
    "@DEVICE; a node's name that holds commas or brackets may stand in double quotes"
)
_WHAT = re.compile(r"@[^=]*|(?:exactly:|!)?\s*[^=,\[\]\"@!]+(?:\[[^\]]*\])?", re.IGNORECASE)
"""What may follow the ``=`` of a pin: a device, or a toolchain with its configuration; the words
``together`` and ``exactly`` look like one."""
_PART = re.compile(r'\s*(?:"((?:[^"]|"")*)"\s*|([^,]*))(?:,|$)')
"""A name in double quotes, in which two of them stand for one, or a glob; up to the next comma."""


def parse_pin(text: str, graph: GraphRecord, model: ModelRecord, known: Sequence[str]) -> Pin:
    """Turn what the user wrote into a pin on operators of a graph.

    Globs match the ONNX node names of the user's file without regard to case; an operator matches
    when any node that it came from does. What is the name of a node, letter by letter, means that
    node alone, whether or not it could be read as globs; so does what stands in double quotes.

    Args:
        text: The pin, as ``GLOB[,GLOB]=WHAT``.
        graph: The model's graph.
        model: The model's record.
        known: The names of all toolchains, present here or not.

    Raises:
        UsageError: The text, a glob or a name is wrong.
    """
    # Names and configurations (name[key=value]) may hold "=", too: the last one that WHAT follows.
    places = (offset for offset, letter in enumerate(text) if letter == "=")
    splits = [offset for offset in places if _WHAT.fullmatch(text[offset + 1 :].strip())]
    if not splits or not text[: splits[-1]].strip():
        raise UsageError(f"{text!r} is not a pin: {HOW_PINS_ARE_WRITTEN}")
    left, what = text[: splits[-1]].strip(), text[splits[-1] + 1 :].strip()
    parts = [(left, True)] if _match(left, True, graph)[0] else _parts(left)
    if not parts:
        raise UsageError(f"the pin {text!r} names no node: {HOW_PINS_ARE_WRITTEN}")
    operators: set[int] = set()
    names: dict[str, None] = {}
    for glob, exact in parts:
        numbers, matched = _match(glob, True, graph)
        if not numbers and not exact:
            numbers, matched = _match(glob, False, graph)
        if not numbers:
            raise UsageError(_nothing_matches(text, glob, graph, model))
        operators |= numbers
        names.update(dict.fromkeys(matched))
    nodes = graph.whole_nodes(operators)
    common: dict[str, Any] = {"nodes": nodes, "text": text, "onnx_nodes": tuple(names)}
    lowered = what.lower()
    if lowered == "together":
        return Pin(kind="together", **common)
    if lowered == "exactly":
        return Pin(kind="exactly", **common)
    if what.startswith("@"):
        if len(what) == 1:
            raise UsageError(f"the pin {text!r} names no device after '@': {HOW_PINS_ARE_WRITTEN}")
        return Pin(kind="device", device=what[1:], **common)
    kind: PinKind = "on"
    if lowered.startswith("exactly:"):
        kind, what = "exactly", what[8:]
    elif what.startswith("!"):
        kind, what = "never", what[1:]
    return Pin(kind=kind, toolchain=_toolchain(what, text, known), **common)


def _toolchain(name: str, text: str, names: Sequence[str]) -> str:
    base = name.split("[", 1)[0].strip().lower()
    if base not in names:
        raise UsageError(
            f"the pin {text!r}: there is no toolchain {name!r}; known are {', '.join(names)}"
        )
    return base + name[len(base) :].strip() if "[" in name else base


def _parts(left: str) -> list[tuple[str, bool]]:
    """Return names and globs that commas part, and whether each one was quoted."""
    parts = [
        (quoted.replace('""', '"') or glob.strip(), bool(quoted))
        for quoted, glob in _PART.findall(left)
    ]
    return [(name, was_quoted) for name, was_quoted in parts if name]


def _match(glob: str, exact: bool, graph: GraphRecord) -> tuple[set[int], list[str]]:
    """Return the operators that a glob or an exact name means, and the names of their nodes."""
    pattern = re.compile(fnmatch.translate(glob.lower()))
    hits = [
        (number, name)
        for number, node in enumerate(graph.nodes)
        for name in node.onnx_nodes
        if (name == glob if exact else pattern.match(name.lower()))
    ]
    return {number for number, _ in hits}, [name for _, name in hits]


def _nothing_matches(text: str, glob: str, graph: GraphRecord, model: ModelRecord) -> str:
    pattern = re.compile(fnmatch.translate(glob.lower()))
    removed = [name for name in model.folded if pattern.match(name.lower())]
    if removed:
        return (
            f"the pin {text!r}: {glob!r} matches only {removed[0]!r}, which clean-up removed (it "
            "is computed once, when the model is read)"
        )
    names = [name for node in graph.nodes for name in node.onnx_nodes]
    close = close_names(glob, names)
    near = f"; near are {', '.join(close)}" if close else ""
    return f"the pin {text!r}: {glob!r} matches no node of the model{near}"


def close_names(glob: str, names: list[str]) -> list[str]:
    """Return up to three names that are much like a glob or hold its text, for a hint."""
    import difflib

    bare = glob.replace("*", "").replace("?", "").lower()
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(bare, by_lower, n=3, cutoff=0.5)
    holding = [name for name in by_lower if bare in name] if bare else []
    return [by_lower[name] for name in dict.fromkeys([*close, *holding])][:3]


def rebind_pins(pins: Sequence[Pin], graph: GraphRecord) -> list[Pin]:
    """Return the pins of another version of a model on this one's nodes.

    Nodes are found again by their ONNX names. A pin none of whose names is left is dropped; one
    that lost some keeps the rest.

    Args:
        pins: The pins on the other version.
        graph: This version's graph.
    """
    named = [(name, number) for number, node in enumerate(graph.nodes) for name in node.onnx_nodes]
    there = {name for name, _ in named}
    kept: list[Pin] = []
    for pin in pins:
        names = tuple(name for name in pin.onnx_nodes if name in there)
        if names:
            nodes = graph.whole_nodes({number for name, number in named if name in names})
            kept.append(msgspec.structs.replace(pin, nodes=nodes, onnx_nodes=names))
    return kept
