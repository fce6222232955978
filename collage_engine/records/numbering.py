"""The two numberings of a model's graph, and sets of each, as types that a checker keeps apart.

A *node index* numbers every node of the dataflow graph (parameters, constants, calls, tuples,
projections). An *operator number* numbers the operator calls among themselves, 0…N-1, in the
same order: candidates, placements, pins, sessions, reports and the desktop use it.
``DataflowGraph.operators``, ``operator_number``, ``to_indices`` and ``to_operators`` lead from
one to the other.

A set of either is one Python integer used as a bit set: union is ``|``, intersection ``&``,
difference ``a & ~b``, "has ``i``" ``a >> i & 1``. At run time all four types are plain integers
and cost nothing; a type checker refuses to mix them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NewType, Self, TypeVar

NodeIndex = NewType("NodeIndex", int)
"""Place of a node in ``DataflowGraph.nodes``."""

OperatorNumber = NewType("OperatorNumber", int)
"""Place of an operator call in ``DataflowGraph.operators``."""

if TYPE_CHECKING:
    Member = TypeVar("Member", bound=int)

    class BitSet(Generic[Member]):
        """What a set of small integers, held in one integer, can do."""

        def __init__(self, bits: int, /) -> None: ...
        def __int__(self) -> int: ...
        def __index__(self) -> int: ...
        def __bool__(self) -> bool: ...
        def __hash__(self) -> int: ...
        def __lt__(self, other: Self) -> bool: ...
        def __or__(self, other: Self) -> Self: ...
        def __and__(self, other: Self) -> Self: ...
        def __invert__(self) -> Self: ...
        def __rshift__(self, member: Member) -> int: ...
        def bit_count(self) -> int:
            """Return how many members there are."""
            ...

        def bit_length(self) -> int:
            """Return one more than the largest member; 0 when empty."""
            ...

    class NodeSet(BitSet[NodeIndex]):
        """A set of nodes of the dataflow graph."""

    class OperatorSet(BitSet[OperatorNumber]):
        """A set of operator calls."""
else:
    NodeSet = OperatorSet = int
