"""Makes pins from a selection; the functions return the new pins and change nothing."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from collage_engine.records.pin import Pin, PinKind
from collage_engine.records.placement import Placement
from collage_gui.document.document import Document
from collage_gui.panels.pin_text import command_line_text


def make_pin(
    document: Document,
    kind: PinKind,
    nodes: Iterable[int],
    toolchain: str | None = None,
    device: str | None = None,
) -> Pin:
    """Make a pin, with its text for the command line and names that survive a new version.

    Args:
        document: The document.
        kind: What the pin demands.
        nodes: Operator numbers.
        toolchain: The toolchain that is demanded or forbidden.
        device: The device that is demanded.
    """
    chosen = tuple(sorted(nodes))
    names = tuple(document.operators.onnx_names(chosen))
    pin = Pin(kind=kind, nodes=chosen, toolchain=toolchain, device=device, onnx_nodes=names)
    return msgspec.structs.replace(pin, text=command_line_text(document.operators, pin))


def with_pin(document: Document, pin: Pin) -> tuple[Pin, ...]:
    """Add a pin to the document's pins.

    A newer demand for a toolchain replaces what older pins of the same kind say about its
    nodes, since a node cannot be on two toolchains; the older pin keeps its other nodes.
    """
    kept: list[Pin] = []
    nodes = set(pin.nodes)
    for old in document.pins.current:
        same = old.kind == pin.kind and (pin.kind != "never" or old.toolchain == pin.toolchain)
        if not same or nodes.isdisjoint(old.nodes):
            kept.append(old)
            continue
        rest = [n for n in old.nodes if n not in nodes]
        if rest and old.kind in ("on", "never", "device"):
            kept.append(make_pin(document, old.kind, rest, old.toolchain, old.device))
    return (*kept, pin)


def without_nodes(document: Document, nodes: frozenset[int]) -> tuple[Pin, ...]:
    """Frees nodes; pins on whole sets of nodes go when one of their nodes is freed."""
    kept: list[Pin] = []
    for old in document.pins.current:
        rest = [n for n in old.nodes if n not in nodes]
        if len(rest) == len(old.nodes):
            kept.append(old)
        elif rest and old.kind in ("on", "never", "device"):
            kept.append(make_pin(document, old.kind, rest, old.toolchain, old.device))
    return tuple(kept)


def pins_as_now(document: Document, placement: Placement) -> tuple[Pin, ...]:
    """Returns pins that keep every partition of a placement exactly as it is."""
    return tuple(make_pin(document, "exactly", p.nodes, p.toolchain) for p in placement.partitions)
