"""Writes pins as screens and the command line do."""

from __future__ import annotations

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.pin import Pin, written_name
from collage_engine.wording.toolchains import toolchain_title

PIN_DEMANDS = {
    "on": "on {toolchain}",
    "never": "never on {toolchain}",
    "exactly": "exactly one partition",
    "exactly on": "exactly one partition of {toolchain}",
    "together": "together in one partition",
    "device": "on device {device}",
}
"""The sentence of what a pin demands, by the pin's kind."""

MARKS = {"on": "●", "never": "⊘", "exactly": "▣", "together": "∪", "device": "@"}
"""The mark of each kind of pin in the graph and in tables."""


def pin_demand(pin: Pin) -> str:
    """Returns what a pin demands, e.g. ``never on oneDNN``."""
    kind = "exactly on" if pin.kind == "exactly" and pin.toolchain else pin.kind
    template = PIN_DEMANDS[kind]
    return template.format(toolchain=toolchain_title(pin.toolchain), device=pin.device)


def command_line_text(graph: OperatorGraph, pin: Pin) -> str:
    """Returns a pin as the command line writes it, e.g. ``/conv1/Conv=!tvm``."""
    # An ONNX node that was lowered to several operators is named once.
    names = dict.fromkeys(map(graph.name, pin.nodes))
    demand = {
        "on": pin.toolchain,
        "never": f"!{pin.toolchain}",
        "together": "together",
        "device": f"@{pin.device}",
        "exactly": "exactly" + (f":{pin.toolchain}" if pin.toolchain else ""),
    }[pin.kind]
    return ",".join(map(written_name, names)) + f"={demand}"
