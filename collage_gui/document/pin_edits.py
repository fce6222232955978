"""Making pins from a selection. Plain functions: what they return is put by an undo command."""

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
    """A pin with the text of the command line and the names that survive a new version."""
    chosen = tuple(sorted(nodes))
    graph = document.operators
    names = (
        tuple(dict.fromkeys(name for n in chosen for name in graph.calls[n].onnx_nodes))
        if graph
        else ()
    )
    pin = Pin(kind=kind, nodes=chosen, toolchain=toolchain, device=device, onnx_nodes=names)
    return msgspec.structs.replace(pin, text=command_line_text(graph, pin))


def with_pin(document: Document, pin: Pin) -> tuple[Pin, ...]:
    """The document's pins with another one.

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
    """The pins with these nodes freed; pins on whole sets go when one of their nodes is freed."""
    kept: list[Pin] = []
    for old in document.pins.current:
        rest = [n for n in old.nodes if n not in nodes]
        if len(rest) == len(old.nodes):
            kept.append(old)
        elif rest and old.kind in ("on", "never", "device"):
            kept.append(make_pin(document, old.kind, rest, old.toolchain, old.device))
    return tuple(kept)


def pins_as_now(document: Document, placement: Placement) -> tuple[Pin, ...]:
    """Every partition exactly as it is now."""
    return tuple(make_pin(document, "exactly", p.nodes, p.toolchain) for p in placement.partitions)


def placement_by_hand(document: Document) -> dict[str, str]:
    """ONNX node name → toolchain: the shown placement, overruled by the pins on toolchains."""
    graph = document.operators
    if graph is None or document.placement.shown is None:
        return {}
    where = {n: p.toolchain for p in document.placement.shown.placement.partitions for n in p.nodes}
    for pin in document.pins.current:
        if pin.kind in ("on", "exactly") and pin.toolchain:
            where.update(dict.fromkeys(pin.nodes, pin.toolchain.split("[")[0]))
    return {
        name: toolchain
        for n, toolchain in sorted(where.items())
        for name in (graph.calls[n].onnx_nodes or (graph.name(n),))
    }
