"""What the state space is made of: node sets, spots, moves."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class SpaceLimit(Exception):
    """The space has more spots than allowed; the caller falls back to bounded search."""


class NodeSet:
    """A set of nodes that at least one usable candidate has."""

    __slots__ = (
        "candidates",
        "eats",
        "first",
        "index",
        "inputs",
        "late",
        "makes",
        "mask",
        "members",
        "size",
    )

    def __init__(self, index: int, members: tuple[int, ...], inputs: tuple[int, ...]) -> None:
        self.index = index
        self.members = members
        """Positions, ascending."""
        self.first = members[0]
        self.size = len(members)
        mask = 0
        for position in members:
            mask |= 1 << (position - self.first)
        self.mask = mask
        """Bit set relative to ``first``."""
        self.inputs = inputs
        """Positions of outside producers, ascending."""
        late = 0
        for position in inputs:
            if position > self.first:
                late |= 1 << (position - self.first)
        self.late = late
        """The inputs after ``first``, relative to it."""
        self.candidates: list[int] = []
        self.eats: tuple[int, ...] = ()
        """Inputs on which transitions can cost something."""
        self.makes: tuple[int, ...] = ()
        """Members whose values others consume, where that can cost something."""


def _nothing(values: tuple) -> tuple:
    return ()


PICKS_KEPT = 20_000
_PICKS: dict[tuple[int, ...], Callable[[tuple], tuple]] = {}


def picker(places: tuple[int, ...]) -> Callable[[tuple], tuple]:
    """A function that takes these places of a tuple, as a tuple."""
    if not places:
        return _nothing
    found = _PICKS.get(places)
    if found is None:
        if len(_PICKS) > PICKS_KEPT:  # on wide graphs hardly any two are alike
            _PICKS.clear()
        if len(places) == 1:
            place = places[0]

            def found(values: tuple) -> tuple:
                return (values[place],)
        else:
            found = itemgetter(*places)
        _PICKS[places] = found
    return found


class Move:
    """A step from one spot to another: apply a node set, or (``set`` None) make one pending."""

    __slots__ = ("back", "eaten", "made", "pick", "set", "target")

    def __init__(self, nodes: NodeSet | None, target: Spot) -> None:
        self.set = nodes
        self.target = target
        self.eaten: tuple[tuple[int, int], ...] = ()
        """Per eaten value: its slot here, and the atoms to keep afterwards (0 when it dies)."""
        self.made: tuple[int, ...] = ()
        """Per made value its slot there."""
        self.pick: Callable[[tuple], tuple] = _nothing
        """(values here, eaten values after, made values) to the values there."""
        self.back: Callable[[tuple], tuple] = _nothing
        """(demands there, 0) to the demands here, before those of the set itself."""


class Spot:
    """A covered set and its pending node sets; ``live`` are the values that still matter."""

    __slots__ = (
        "ahead",
        "first",
        "index",
        "left",
        "live",
        "moves",
        "pending",
        "rank",
        "untouched",
    )

    def __init__(self, index: int, first: int, ahead: int, pending: tuple[int, ...]) -> None:
        self.index = index
        self.first = first
        self.ahead = ahead
        self.pending = pending
        self.rank = 0
        self.live: tuple[int, ...] = ()
        """Positions of live values on which transitions can cost something, ascending."""
        self.left: tuple[int, ...] = ()
        """Per live value its uncovered consumers, counted."""
        self.untouched: tuple[bool, ...] = ()
        """Per live value whether no consumer at all is covered."""
        self.moves: list[Move] | None = None
