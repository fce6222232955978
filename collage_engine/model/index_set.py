"""Holds sets of node indices and of operator numbers, each as the bits of one Python integer.

Union is ``|``, intersection ``&``, difference ``a & ~b``, and ``a`` is a subset of ``b`` when
``a & ~b`` is empty. The types are in ``records.graph``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from collage_engine.records.graph import NodeIndex, NodeSet, OperatorNumber, OperatorSet

if TYPE_CHECKING:
    from collage_engine.records.graph import BitSet, Member

NO_NODES = NodeSet(0)
"""The set that holds no node."""

NO_OPERATORS = OperatorSet(0)
"""The set that holds no operator."""


def node_set(indices: Iterable[NodeIndex]) -> NodeSet:
    """Return the set of these nodes."""
    bits = 0
    for index in indices:
        bits |= 1 << index
    return NodeSet(bits)


def operator_set(numbers: Iterable[OperatorNumber]) -> OperatorSet:
    """Return the set of these operators."""
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return OperatorSet(bits)


def one_node(index: NodeIndex) -> NodeSet:
    """Return the set of one node."""
    return NodeSet(1 << index)


def one_operator(number: OperatorNumber) -> OperatorSet:
    """Return the set of one operator."""
    return OperatorSet(1 << number)


def members(bits: BitSet[Member]) -> Iterator[Member]:
    """Yields the members of a set in ascending order."""
    rest = int(bits)
    index = -1
    while rest:
        # The shifted number is as short as the span of the members, however large these are.
        step = (rest & -rest).bit_length()
        index += step
        yield index  # type: ignore[misc]  # The set's type says which numbering its bits have.
        rest >>= step


def first(bits: BitSet[Member]) -> Member:
    """Return the smallest member; the set must not be empty."""
    rest = int(bits)
    return (rest & -rest).bit_length() - 1  # type: ignore[return-value]  # As in ``members``.
