"""Writes quantised composites of a function as integer computations.

Done while the function's Relax module is built: each composite of partition/quantized.py becomes
one kernel over 8-bit values. Images between two of them stay channels last; they are turned where
somebody else reads them. What has no integer form here stays as the model has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from collage_engine.kernels.target import Cpu, cpu
from collage_engine.model.index_set import NO_NODES, members, node_set
from collage_engine.partition import quantized as table
from collage_engine.partition.quantized import Quantized
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.tvm.quantized_writer import NoForm, Writer, permuted


class Integers:
    """The composites of one function, and the values they have made so far."""

    def __init__(self, function: Function) -> None:
        self.function, self.graph = function, function.graph
        leaving = node_set(function.outputs)
        self.found = table.within(self.graph, function.nodes, leaving)
        self.inside = node_set(i for each in self.found.values() for i in members(each.nodes))
        self.cpu: Cpu = cpu(function.instance.threads)
        self.images: dict[int, Any] = {}
        """Channels-last forms of values, by node."""
        self.plain: dict[int, Any] = {}
        self.unturned: set[int] = set()
        """Roots whose value stands channels last in the graph's place: ``turned`` before it is read
        by anything but a composite. (All readers were to be such, and one was given up since.)"""
        self.given_up = NO_NODES

    def skips(self, index: NodeIndex) -> bool:
        """Tell whether a node is inside a composite and not its root."""
        inside = self.inside & ~self.given_up
        return bool(inside >> index & 1) and index not in self.found

    def emit(
        self, builder: relax.BlockBuilder, index: NodeIndex, value_of: Callable[[int], Any]
    ) -> Any | None:
        """Return the value of a composite's root as the graph has it; None when it is none of ours.

        ``value_of`` gives the Relax value of a node outside the composite. A composite without
        an integer form gives None as well and is then ``opened``.
        """
        found = self.found.get(index)
        if found is None or self.given_up >> index & 1:
            return None
        try:
            return self._writer()(self, builder, value_of, found).write()
        except (NoForm, UnsupportedError):
            self.given_up |= found.nodes
            return None

    def turned(self, builder: relax.BlockBuilder, index: NodeIndex) -> Any:
        """Return the value of a root of ``unturned`` as the graph has it."""
        self.unturned.discard(index)
        if index not in self.plain:
            rank = len(self.graph.nodes[index].type.shape)
            order = [0, rank - 1, *range(1, rank - 1)]
            self.plain[index] = permuted(builder, self.images[index], order)
        return self.plain[index]

    def _writer(self) -> type[Writer]:
        """Return what writes for a processor, or for the device of an architecture."""
        if not self.function.instance.architecture:
            return Writer
        from collage_engine.toolchains.tvm.cuda.integers import CudaWriter

        return CudaWriter

    def opened(self, index: NodeIndex) -> list[NodeIndex]:
        """Returns the nodes of a composite that was given up, which are emitted one by one."""
        found = self.found.get(index)
        if found is None or not self.given_up >> index & 1:
            return [index]
        return list(members(found.nodes))

    def read_as_image(self, index: NodeIndex) -> bool:
        """Tell whether every reader of a value would take it channels last."""
        graph = self.graph
        if index in self.function.outputs:
            return False
        for user in graph.users[index]:
            if not self.function.nodes >> user & 1:
                return False
            root = next((r for r, f in self.found.items() if f.nodes >> user & 1), None)
            if root is None or not _takes_images(graph.nodes, self.found[root]):
                return False
        return True


def _takes_images(nodes: Sequence[Node], found: Quantized) -> bool:
    if found.kind == "conv":
        return True
    return found.kind == "binary" and len(nodes[found["anchor"]].type.shape) == 4
