"""What makes two measurements the same: a canonical form, and a key over it.

The canonical form of a sub-graph is a text that is equal for equal work: operators,
attributes, wiring, types and formats, with values numbered in an order that depends on
nothing else. Weights take part by shape and type. Two texts are equal only if the functions
are (up to the values of weights); a few symmetric functions may get two texts, which costs a
second measurement and no mistake.
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
    OperatorNumber,
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
        roots = self._roots(operators)
        taken, given = takes or {}, gives or {}
        number: dict[int, int] = {}
        lines: list[str] = []

        def add(values: Sequence[ValueIndex], line: str) -> None:
            for index in values:
                number[index] = len(number)
            lines.append(line)

        for root in roots:
            stack: list[ValueIndex] = [root]
            while stack:
                index = stack.pop()
                if index in number:
                    continue
                value = graph.values[index]
                if value.constant:
                    add([index], f"const {value.type}{self._value(index)}")
                    continue
                if value.producer is None or not operators >> value.producer & 1:
                    add([index], f"in {value.type}{_format(taken, index)}")
                    continue
                node = graph.nodes[value.producer]
                waiting = [source for source in node.inputs if source not in number]
                if waiting:
                    stack += [index, *reversed(waiting)]
                    continue
                wires = ",".join(str(number[source]) for source in node.inputs)
                out = "".join(
                    f" out{place or ''}{_format(given, made)}"
                    for place, made in enumerate(node.outputs)
                    if made in leaving
                )
                add(node.outputs, f"{self._part(node)}({wires}){out}")
        return "\n".join(lines)

    def _roots(self, operators: OperatorSet) -> list[OperatorNumber]:
        """Return the operators of a set from which all of it is reached, in a canonical order."""
        graph = self.graph
        ends = [
            o for o in members(operators) if not any(operators >> u & 1 for u in graph.users[o])
        ]
        roots = list(dict.fromkeys((*graph.exits(operators), *ends)))
        merkle = self._merkle(operators) if len(roots) > 1 else {}
        return sorted(roots, key=lambda index: (merkle.get(index, b""), index))

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

    def _merkle(self, operators: OperatorSet) -> dict[int, bytes]:
        """Return a hash of all that each operator is computed from inside: orders several ends."""
        graph = self.graph
        hashes: dict[int, bytes] = {}
        for operator in members(operators):
            node = graph.nodes[operator]
            digest = hashlib.blake2b(self._part(node).encode(), digest_size=16)
            for value in map(graph.values.__getitem__, node.inputs):
                if value.producer is not None and value.producer in hashes:
                    place = graph.nodes[value.producer].outputs.index(value.index)
                    digest.update(hashes[value.producer] + str(place or "").encode())
                else:
                    text = "const" if value.constant else "in"
                    known = self._value(value.index) if value.constant else ""
                    digest.update(f"{text} {value.type}{known}".encode())
            hashes[operator] = digest.digest()
        return hashes


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
