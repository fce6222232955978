"""What makes two measurements the same: a canonical form, and a key over it.

The canonical form of a sub-graph is a text that is equal for equal work: operators,
attributes, wiring, types and formats, with values numbered as the operators come in the graph.
Weights take part by shape and type. Two texts are equal only if the functions are (up to the
values of weights); functions whose branches come in another order get two texts, which costs a
second measurement and no mistake. Of 13 models of ``tests.zoo`` no two blocks do: a walk from the
ends of a sub-graph, in an order of its own, made as many texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.formats import border_formats
from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import (
    Node,
    OperatorSet,
    ValueIndex,
    members,
    operator_set,
)
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.versions import MEASURING_PROTOCOL

if TYPE_CHECKING:
    import numpy as np

SMALL_INTEGERS = 16
"""Elements up to which an integer constant acts as an attribute (axes, shapes, indices) and is part
of a key by its values; chosen."""


class KeyMaker:
    """Canonical forms over one graph; what depends on a single operator is computed once.

    ``constant`` gives the numbers of a constant. With it, one-element constants and small integer
    constants take part by value, because they steer what is computed (an exponent, a clip bound,
    indices) and not just what with.
    """

    def __init__(
        self, graph: DataflowGraph, constant: Callable[[int], np.ndarray] | None = None
    ) -> None:
        self.graph = graph
        self._constant = constant
        self._parts: dict[int, str] = {}
        self._forms: dict[tuple[object, ...], str] = {}

    def form(
        self,
        operators: OperatorSet,
        takes: Mapping[int, str] | None = None,
        gives: Mapping[int, str] | None = None,
    ) -> str:
        """Return the canonical form of a set of operators.

        ``takes`` and ``gives`` are formats other than plain, by value index.
        """
        graph = self.graph
        leaving = set(graph.boundary(operators)[1])
        taken, given = takes or {}, gives or {}
        number: dict[int, int] = {}
        lines: list[str] = []

        def add(values: Sequence[ValueIndex], line: str) -> None:
            for index in values:
                number[index] = len(number)
            lines.append(line)

        for operator in members(operators):
            node = graph.nodes[operator]
            for index in dict.fromkeys(node.inputs):
                value = graph.values[index]
                if index not in number and value.constant:
                    add([index], f"const {value.type}{self._value(index)}")
                elif index not in number:
                    add([index], f"in {value.type}{_format(taken, index)}")
            wires = ",".join(str(number[source]) for source in node.inputs)
            out = "".join(
                f" out{place or ''}{_format(given, made)}"
                for place, made in enumerate(node.outputs)
                if made in leaving
            )
            add(node.outputs, f"{self._part(node)}({wires}){out}")
        return "\n".join(lines)

    def form_of(self, record: Candidate) -> str:
        """Return the canonical form of a candidate, in its formats."""
        operators = operator_set(record.nodes)
        key = (operators, tuple(record.takes.items()), tuple(record.gives.items()))
        form = self._forms.get(key)
        if form is None:
            takes, gives = border_formats(self.graph, operators, record.takes, record.gives)
            form = self._forms[key] = self.form(operators, takes, gives)
        return form

    def _part(self, node: Node) -> str:
        """Return what an operator is, without its wiring."""
        part = self._parts.get(node.index)
        if part is None:
            attributes = json.dumps(node.attributes, sort_keys=True, separators=(",", ":"))
            part = f"{node.op}{attributes}{'+'.join(map(str, node.types))}"
            self._parts[node.index] = part
        return part

    def _value(self, index: ValueIndex) -> str:
        if self._constant is None:
            return ""
        kind = self.graph.values[index].type
        whole = "int" in kind.dtype or kind.dtype == "bool"
        if kind.elements > (SMALL_INTEGERS if whole else 1):
            return ""
        return "=" + repr(self._constant(index).tolist())


def _format(formats: Mapping[int, str], index: int) -> str:
    return f" as {formats[index]}" if index in formats else ""


@dataclass(frozen=True)
class KeyContext:
    """What a measurement depends on beside the function and the instance."""

    tvm_version: str
    target: str
    fingerprint: str
    """Of the device."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Toolchain name → its library's version."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Toolchain name → hash of its folder's sources."""
    protocol: int = MEASURING_PROTOCOL
    host: str = ""
    """Of the processor beside it, which runs what is on no device; empty: it is the device."""

    def key(self, form: str, instance: ToolchainInstance) -> str:
        """Return the SHA-256, in hexadecimal digits, of all that a time depends on.

        Args:
            form: The canonical form of the sub-graph.
            instance: The toolchain instance, with its threads and precision.
        """
        parts = (
            form,
            instance.id,
            str(instance.threads),
            instance.precision,
            self.versions.get(instance.toolchain, ""),
            self.sources.get(instance.toolchain, ""),
            self.tvm_version,
            self.target,
            self.fingerprint if instance.architecture else self.host or self.fingerprint,
            str(self.protocol),
        )
        digest = hashlib.sha256()
        for part in parts:
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()


def constant_name(what: str, about: Sequence[object]) -> str:
    """Return the name, in the store, of constants that depend on some facts.

    Args:
        what: What is measured, which the name begins with.
        about: Numbers, texts and lists of these; equal ones give equal names.
    """
    return f"{what}:{hashlib.sha256(json.dumps(about).encode()).hexdigest()}"
