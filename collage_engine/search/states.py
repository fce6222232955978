"""The elements of the state space: node sets, states, and the moves between states."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class SearchLimitExceeded(Exception):
    """Label setting would exceed its limit of work or time: the integer program takes over."""


class NodeSet:
    """A set of nodes that at least one usable candidate covers."""

    __slots__ = (
        "candidates",
        "consumed",
        "first",
        "index",
        "inputs",
        "later_inputs",
        "mask",
        "members",
        "produced",
        "size",
    )

    def __init__(self, index: int, members: tuple[int, ...], inputs: tuple[int, ...]) -> None:
        self.index = index
        self.members = members
        """Positions of its nodes in the sweep, ascending."""
        self.first = members[0]
        self.size = len(members)
        mask = 0
        for position in members:
            mask |= 1 << (position - self.first)
        self.mask = mask
        """Bit set of the members, relative to ``first``."""
        self.inputs = inputs
        """Positions of the producers outside the set, ascending."""
        later = 0
        for position in inputs:
            if position > self.first:
                later |= 1 << (position - self.first)
        self.later_inputs = later
        """Bit set of the inputs that come after ``first``, relative to it."""
        self.candidates: list[int] = []
        self.consumed: tuple[int, ...] = ()
        """The inputs on which a transition can cost something."""
        self.produced: tuple[int, ...] = ()
        """The members whose values others consume, where a transition can cost something."""


def _select_nothing(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return ()


@lru_cache(maxsize=20_000)  # some megabytes; on wide graphs hardly any two moves share one
def tuple_selector(places: tuple[int, ...]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that takes these places of a tuple, as a tuple.

    >>> tuple_selector((2, 0))(("a", "b", "c"))
    ('c', 'a')
    """
    if not places:
        return _select_nothing
    if len(places) == 1:
        place = places[0]
        return lambda values: (values[place],)
    return itemgetter(*places)


class Move:
    """An arc of the state space: apply a node set, or (``node_set`` is None) make one pending."""

    __slots__ = ("consumed", "gather_demands", "gather_values", "node_set", "produced", "target")

    def __init__(self, node_set: NodeSet | None, target: State) -> None:
        self.node_set = node_set
        self.target = target
        self.consumed: tuple[tuple[int, int], ...] = ()
        """Per consumed value: its slot in the source state, and the atoms to keep (0: it dies)."""
        self.produced: tuple[int, ...] = ()
        """Per produced value: its slot in the target state."""
        self.gather_values: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _select_nothing
        """Maps (values at the source, consumed values after, produced values) to the values at the
        target."""
        self.gather_demands: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _select_nothing
        """Maps (demands at the target, 0) to the demands at the source, without those of the node
        set itself."""


class State:
    """A set of covered nodes with a stack of pending node sets.

    All nodes before ``first_uncovered`` are covered, that one is not, and ``covered_ahead`` is the
    bit set, relative to it, of the covered nodes after it.
    """

    __slots__ = (
        "covered_ahead",
        "first_uncovered",
        "index",
        "live",
        "moves",
        "open_consumers",
        "pending",
        "rank",
        "unconsumed",
    )

    def __init__(
        self, index: int, first_uncovered: int, covered_ahead: int, pending: tuple[int, ...]
    ) -> None:
        self.index = index
        self.first_uncovered = first_uncovered
        self.covered_ahead = covered_ahead
        self.pending = pending
        """Indices of the pending node sets, the top of the stack last."""
        self.rank = 0
        """Every move leads to a state of higher rank."""
        self.live: tuple[int, ...] = ()
        """Positions of the live values on which a transition can cost something, ascending."""
        self.open_consumers: tuple[int, ...] = ()
        """Per live value: how many of its consumers are uncovered."""
        self.unconsumed: tuple[bool, ...] = ()
        """Per live value: whether none of its consumers is covered."""
        self.moves: list[Move] | None = None
        """The moves that start here; None until they are computed."""
