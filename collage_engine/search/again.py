"""Searching again after a small change: recompute what the change reaches, shift the rest.

A pin rules out candidates of a few node sets. Around them ends and pasts really change; further
away only a constant is added to all of a spot's costs, because what is compared there is the same
as before. So every spot is either *shifted* (its lists are the old ones plus an amount) or computed
anew, and a spot whose neighbours are all shifted by the same amount, over node sets that did not
change, is shifted by it too. A candidate's least cover shifts with both sides of its moves. The
result equals a fresh search exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.search.shortest_path import End, Passes, Past, fewer_pasts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.space import Space
    from collage_engine.search.spots import Move, Spot
    from collage_engine.search.weights import Weights


class PassesAgain(Passes):
    """Passes that start from older ones over the same space."""

    def __init__(
        self,
        space: Space,
        weights: Weights,
        allowed: Sequence[bool],
        base: Passes,
        *,
        changed: Sequence[int] = (),
        limit: int | None = None,
        deadline: float | None = None,
    ) -> None:
        """``base``: passes with pasts; ``changed``: candidates whose cost has changed since."""
        super().__init__(space, weights, allowed, limit=limit, deadline=deadline)
        self.base = base
        self.changed = [old != new for old, new in zip(base.offered, self.offered, strict=True)]
        for c in changed:
            self.changed[space.set_of[c].index] = True
        self.end_shift: list[int | None] = [None] * len(space.spots)
        """By how much a spot's ends are shifted; None: they were computed anew."""
        self.past_shift: list[int | None] = [None] * len(space.spots)

    def backward(self) -> int | None:
        for done, spot in enumerate(reversed(self.spots)):
            if not done & 1023:
                self.watch(done)
            index = spot.index
            if spot.first == self.space.count:
                self.ends[index] = self.base.ends[index]
                self.end_shift[index] = 0
                continue
            old = self.base.ends[index]
            shift = self._common_end(spot)
            if shift is not None:
                self.end_shift[index] = shift
                self.ends[index] = old if not shift else [(d, cost + shift) for d, cost in old]
                continue
            self.end(spot)
            self.end_shift[index] = _shift(old, self.ends[index])
        found = self.ends[self.space.start().index]
        return found[0][1] if found else None

    def _common_end(self, spot: Spot) -> int | None:
        """The shift that all ways on share; None when they differ or something changed."""
        common: int | None = None
        for move in self.space.moves(spot):
            target = move.target.index
            if move.set is not None and self.changed[move.set.index]:
                return None
            shift = self.end_shift[target]
            if shift is None:
                return None
            if not self.ends[target]:
                continue
            if common is None:
                common = shift
            elif common != shift:
                return None
        return 0 if common is None else common

    def forward(self) -> None:
        leading, applying = self.space.links()
        start = self.space.start().index
        for done, spot in enumerate(self.spots):
            if not done & 1023:
                self.watch(len(self.spots))
            index = spot.index
            if index == start:
                self.pasts[index] = self.base.pasts[index] or [((), 0)]
                self.past_shift[index] = 0
                continue
            if not self.ends[index]:
                continue
            old = self.base.pasts[index]
            shift = self._common_past(leading[index])
            if shift is not None and (old or not self.base.ends[index]) and self.base.ends[index]:
                self.past_shift[index] = shift
                self.pasts[index] = old if not shift else [(v, cost + shift) for v, cost in old]
                continue
            here: dict = {}
            for before, move in leading[index]:
                if self.pasts[before.index]:
                    self.arrive(self.pasts[before.index], move, here)
            if here:
                self.work += len(here)
                self.pasts[index] = fewer_pasts(self.weights.book, spot, here)
            self.past_shift[index] = _shift(old, self.pasts[index])
        for nodes in self.space.sets:
            if self.offered[nodes.index]:
                self._through_set(nodes.index, applying[nodes.index])

    def forget(self) -> None:
        del self.base

    def _common_past(self, leading: list[tuple[Spot, Move]]) -> int | None:
        common: int | None = None
        for before, move in leading:
            if move.set is not None and self.changed[move.set.index]:
                return None
            index = before.index
            if not self.ends[index] and not self.base.ends[index]:
                continue
            shift = self.past_shift[index]
            if shift is None:
                return None
            if not self.pasts[index]:
                continue
            if common is None:
                common = shift
            elif common != shift:
                return None
        return 0 if common is None else common

    def _through_set(self, index: int, applying: list[tuple[Spot, Move]]) -> None:
        """Least covers of a node set's candidates: shifted when all its moves are, alike."""
        common: int | None = None
        anew = self.changed[index]
        for before, move in applying:
            if anew:
                break
            target = move.target.index
            here, there = before.index, target
            now = bool(self.pasts[here]) and bool(self.ends[there])
            if now != (bool(self.base.pasts[here]) and bool(self.base.ends[there])):
                anew = True
            elif now:
                past, end = self.past_shift[here], self.end_shift[there]
                if past is None or end is None or (common is not None and common != past + end):
                    anew = True
                else:
                    common = past + end
        if anew:
            for before, move in applying:
                if self.pasts[before.index] and self.ends[move.target.index]:
                    self.settle(move, self.pasts[before.index])
            self.follow(index)
            return
        if common is not None:
            old = self.base.through
            for c in self.offered[index]:
                if c in old:
                    self.through[c] = old[c] + common


def _shift(old: list[End] | list[Past], new: list[End] | list[Past]) -> int | None:
    """The amount that turns one list into the other; None when there is none."""
    if len(old) != len(new):
        return None
    if not old:
        return 0
    amount = new[0][1] - old[0][1]
    for (key, cost), (other, price) in zip(old, new, strict=True):
        if price - cost != amount or key != other:
            return None
    return amount
