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
from collage_engine.records.graph import NodeSet, members, node_set
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.versions import MEASURING_PROTOCOL

if TYPE_CHECKING:
    import numpy as np

SMALL_INTEGERS = 16
"""Elements up to which an integer constant acts as an attribute (axes, shapes, indices) and is part
of a key by its values; chosen."""


class KeyMaker:
    """Canonical forms over one graph; what depends on a single node is computed once.

    ``constant`` gives the value of a constant node. With it, one-element constants and small
    integer constants take part by value, because they steer what is computed (an exponent, a
    clip bound, indices) and not just what with.
    """

    def __init__(
        self, graph: DataflowGraph, constant: Callable[[int], np.ndarray] | None = None
    ) -> None:
        self.graph = graph
        self._constant = constant
        self._parts: dict[int, str] = {}
        self._type_texts: dict[int, str] = {}
        self._forms: dict[tuple[object, ...], str] = {}

    def form(
        self,
        nodes: NodeSet,
        takes: Mapping[int, str] | None = None,
        gives: Mapping[int, str] | None = None,
    ) -> str:
        """Return the canonical form of a set of nodes, closed first (see ``DataflowGraph.close``).

        ``takes`` and ``gives`` are formats other than plain, by node index of the value.
        """
        graph = self.graph
        nodes = graph.close(nodes)
        inputs, outputs = graph.boundary(nodes)
        leaving = set(outputs)
        read = node_set(s for index in members(nodes) for s in graph.nodes[index].inputs)
        dead_ends = members(nodes & ~read)
        roots = list(dict.fromkeys((*outputs, *dead_ends)))
        merkle = self._merkle(nodes) if len(roots) > 1 else {}
        roots.sort(key=lambda index: (merkle.get(index, b""), index))
        taken, given = takes or {}, gives or {}
        number: dict[int, int] = {}
        lines: list[str] = []
        outside = set(inputs)
        for root in roots:
            stack = [root]
            while stack:
                index = stack[-1]
                if index in number:
                    stack.pop()
                    continue
                if index in outside:
                    stack.pop()
                    number[index] = len(number)
                    lines.append(f"in {self._types(index)}{_format(taken, index)}")
                    continue
                waiting = [s for s in graph.nodes[index].inputs if s not in number]
                if waiting:
                    stack.extend(reversed(waiting))
                    continue
                stack.pop()
                number[index] = len(number)
                wires = ",".join(str(number[s]) for s in graph.nodes[index].inputs)
                out = " out" + _format(given, index) if index in leaving else ""
                lines.append(f"{self._part(index)}({wires}){out}")
        return "\n".join(lines)

    def form_of(self, record: Candidate) -> str:
        """Return the canonical form of a candidate, in its formats."""
        nodes = self.graph.to_indices(record.nodes)
        known = (nodes, tuple(record.takes.items()), tuple(record.gives.items()))
        form = self._forms.get(known)
        if form is None:
            closed = self.graph.close(nodes)
            takes, gives = border_formats(self.graph, closed, record.takes, record.gives)
            form = self._forms[known] = self.form(nodes, takes, gives)
        return form

    def _types(self, index: int) -> str:
        types = self._type_texts.get(index)
        if types is None:
            types = "+".join(map(str, self.graph.nodes[index].types))
            self._type_texts[index] = types
        return types

    def _part(self, index: int) -> str:
        """Return what a node is, without its wiring."""
        part = self._parts.get(index)
        if part is None:
            node = self.graph.nodes[index]
            if node.form == "call":
                attributes = json.dumps(node.attributes, sort_keys=True, separators=(",", ":"))
                part = f"{node.op}{attributes}{self._types(index)}"
            elif node.form == "constant":
                part = f"const {self._types(index)}{self._value(index)}"
            elif node.form == "projection":
                part = f"field {node.field}"
            else:
                part = node.form
            self._parts[index] = part
        return part

    def _value(self, index: int) -> str:
        if self._constant is None:
            return ""
        kind = self.graph.nodes[index].type
        whole = "int" in kind.dtype or kind.dtype == "bool"
        if kind.elements > (SMALL_INTEGERS if whole else 1):
            return ""
        return "=" + repr(self._constant(index).tolist())

    def _merkle(self, nodes: NodeSet) -> dict[int, bytes]:
        """Return a hash per node of all that it is computed from inside: orders several outputs."""
        found: dict[int, bytes] = {}
        for index in members(nodes):
            digest = hashlib.blake2b(self._part(index).encode(), digest_size=16)
            for source in self.graph.nodes[index].inputs:
                digest.update(found.get(source) or f"in {self._types(source)}".encode())
            found[index] = digest.digest()
        return found


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
            "+".join(self.versions.get(name, "") for name in instance.runtimes),
            "+".join(self.sources.get(name, "") for name in instance.runtimes),
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
