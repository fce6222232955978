"""Mixes library calls with kernels: another toolchain's library runs composites of a group.

RFC 0062 asks for "library implementations to be considered" inside what TVM compiles: the rule
tree ``OnlyValid(Combine TVM(Union(OpCallByKind, Composite(pattern))))``. Here a composite becomes
a packed call of the library's runtime module, which computes where the VM wants the result; the
other operators of the group are kernels around it that read and write the same buffers. The
library is known by its name in the registry only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.greedy import closed
from collage_engine.partition.rule_trees import GROUP_CONFIG, composite_rules, library_rules
from collage_engine.partition.rules import Composites, PartitionRule
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.graph import NO_OPERATORS, OperatorSet, members
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.capabilities import library_of
from collage_engine.toolchains.registry import get

OPTION = "library"


def instance_with(toolchain: str, threads: int, library: str) -> ToolchainInstance:
    """Return the instance whose kernels call this library."""
    return ToolchainInstance(toolchain=toolchain, config=((OPTION, library),), threads=threads)


def rules(instance: ToolchainInstance) -> PartitionRule:
    """Return the rules that propose TVM's groups, with the library's composites as anchors."""
    return library_rules(instance.toolchain, library_of(get(instance.library)).library_table())


@lru_cache(maxsize=8)
def _matches(graph: DataflowGraph, library: str) -> tuple[tuple[str, OperatorSet], ...]:
    """Return all that the library's patterns match, in the order in which they may claim operators.

    Patterns come as in the table, roots from the output to the input.
    """
    rule = composite_rules(library, library_of(get(library)).library_table())
    return tuple(
        (name, match.nodes)
        for name, pattern in rule.patterns()
        for at_root in reversed(pattern.matches(graph))
        for match in at_root
        if closed(graph, match)
    )


def _found(
    graph: DataflowGraph, library: str, operators: OperatorSet
) -> list[tuple[str, OperatorSet]]:
    """Return the composites of a set of operators as MergeComposite would take them alone."""
    free = operators
    matches = []
    for name, matched in _matches(graph, library):
        if not matched & ~free:
            free &= ~matched
            matches.append((name, matched))
    return matches


def made_of(graph: DataflowGraph, library: str, operators: OperatorSet) -> Composites | None:
    """Return the composites of a set that also has kernels of TVM's beside them; else None.

    Without a composite the set is plain TVM's; without anything beside, it is the library's own.
    """
    matches = _found(graph, library, operators)
    covered = NO_OPERATORS
    for _, inside in matches:
        covered |= inside
    if not matches or covered == operators:
        return None
    if not SubGraph(graph, operators).is_valid(GROUP_CONFIG):
        return None
    if any("quantize" in graph.nodes[o].op for o in members(operators)):
        return None  # 8-bit composites are integer kernels, or the library's own partitions
    return tuple(sorted(((n, tuple(members(bits))) for n, bits in matches), key=lambda c: c[1]))


class LibraryCalls:
    """The composites of one function, compiled by the library."""

    def __init__(self, function: Function) -> None:
        graph, library = function.graph, get(function.instance.library)
        self.modules: list[Any] = []
        self._roots: dict[int, Function] = {}
        self._inner: set[int] = set()
        leaving = set(function.outputs)
        held = function.nodes
        for number, (name, operators) in enumerate(_found(graph, library.name, held)):
            inputs, outputs = graph.boundary(operators)
            *inner, root = members(operators)
            if outputs != (root,) or leaving.intersection(inner):
                raise ToolchainError(f"{name}: more than its result is needed outside")
            composite = replace(
                function,
                symbol=f"{function.symbol}_{library.name}{number}",
                nodes=operators,
                inputs=inputs,
                outputs=outputs,
                takes={},
                gives={},
            )
            self.modules.append(library.compile(composite))
            self._roots[root] = composite
            self._inner.update(inner)

    def skips(self, index: int) -> bool:
        """Tell whether a call is inside a composite, not its root."""
        return index in self._inner

    def composite(self, index: int) -> Function | None:
        """Return the composite of which a call is the root; None for other calls."""
        return self._roots.get(index)

    def emit(self, builder: Any, index: int, value: Callable[[int], Any]) -> Any | None:
        """Return the composite of which a call is the root, as a packed call.

        None for other calls.
        """
        from tvm import relax

        composite = self.composite(index)
        if composite is None:
            return None
        kind = composite.graph.values[index].type
        arguments = [value(i) for i in composite.inputs]
        given = relax.TensorType(kind.shape, kind.dtype)
        return builder.emit(relax.op.call_dps_packed(composite.symbol, arguments, given))
