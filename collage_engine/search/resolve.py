"""Incremental re-solve (warm start): recompute what a small change reaches, shift the rest.

A pin rules out candidates of a few node sets. Around them the labels really change; further away
only a constant is added to the costs of all of a state's labels, because what is compared there is
the same as before. So every state is either *shifted* (its labels are the old ones plus an amount)
or computed anew, and a state whose neighbours are all shifted by the same amount, over node sets
that did not change, is shifted by it too. A candidate's least cover shifts with both sides of its
moves. The result equals that of a fresh search exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.search.label_setting import LabelSetting, undominated_forward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.label_setting import BackwardLabel, ForwardLabel, Values
    from collage_engine.search.state_space import Arc, StateSpace
    from collage_engine.search.states import State
    from collage_engine.search.weights import Weights

RESOLVE_CHECK_MASK = 1023
"""Work and time are checked at every state whose number has none of these bits (chosen: most
states are only shifted, which is quicker than computing them)."""


class IncrementalLabelSetting(LabelSetting):
    """Label setting that starts from the labels of an earlier solve over the same space."""

    def __init__(
        self,
        space: StateSpace,
        weights: Weights,
        allowed: Sequence[bool],
        base: LabelSetting,
        *,
        repriced: Sequence[int] = (),
        limit: int | None = None,
        deadline: float | None = None,
    ) -> None:
        """Prepare the passes.

        Args:
            space: The state space.
            weights: Costs of the candidates.
            allowed: Per candidate whether it may be chosen.
            base: Finished labels of both passes.
            repriced: Candidates whose costs have changed since ``base``.
            limit: The most steps of work.
            deadline: The latest time to end, in :func:`time.monotonic` seconds.
        """
        super().__init__(space, weights, allowed, limit=limit, deadline=deadline)
        self.base = base
        self.changed = [old != new for old, new in zip(base.eligible, self.eligible, strict=True)]
        """Per node set whether its candidates or their costs differ from those of ``base``."""
        for c in repriced:
            self.changed[space.node_set_of[c].index] = True
        self.backward_shift: list[int | None] = [None] * len(space.states)
        """By how much a state's backward labels are shifted; None: they were computed anew."""
        self.forward_shift: list[int | None] = [None] * len(space.states)
        """By how much a state's forward labels are shifted; None: they were computed anew."""

    def run_backward(self) -> int | None:
        """Compute the backward labels of all states; see :meth:`LabelSetting.run_backward`."""
        for done, state in enumerate(reversed(self.states)):
            if not done & RESOLVE_CHECK_MASK:
                self.check_budget(done)
            index = state.index
            if state.first_uncovered == self.space.count:
                self.backward_labels[index] = self.base.backward_labels[index]
                self.backward_shift[index] = 0
                continue
            old = self.base.backward_labels[index]
            shift = self._common_backward_shift(state)
            if shift is not None:
                self.backward_shift[index] = shift
                self.backward_labels[index] = (
                    old if not shift else [(demands, cost + shift) for demands, cost in old]
                )
                continue
            self.extend_backward(state)
            self.backward_shift[index] = _shift_between(old, self.backward_labels[index])
        at_start = self.backward_labels[self.space.start().index]
        return at_start[0][1] if at_start else None

    def _common_backward_shift(self, state: State) -> int | None:
        """Return the shift that all moves share; None when they differ or something changed."""
        common: int | None = None
        for move in self.space.moves(state):
            target = move.target.index
            if move.node_set is not None and self.changed[move.node_set.index]:
                return None
            shift = self.backward_shift[target]
            if shift is None:
                return None
            if not self.backward_labels[target]:
                continue
            if common is None:
                common = shift
            elif common != shift:
                return None
        return 0 if common is None else common

    def run_forward(self) -> None:
        """Compute forward labels and ``least_through``; see :meth:`LabelSetting.run_forward`."""
        leading, applying = self.space.arcs()
        start = self.space.start().index
        for done, state in enumerate(self.states):
            if not done & RESOLVE_CHECK_MASK:
                self.check_budget(len(self.states))
            index = state.index
            if index == start:
                self.forward_labels[index] = self.base.forward_labels[index] or [((), 0)]
                self.forward_shift[index] = 0
            elif self.backward_labels[index]:
                self._extend_or_shift_forward(state, leading[index])
        for nodes in self.space.node_sets:
            if self.eligible[nodes.index]:
                self._update_node_set(nodes.index, applying[nodes.index])

    def _extend_or_shift_forward(self, state: State, leading: list[Arc]) -> None:
        index = state.index
        old = self.base.forward_labels[index]
        shift = self._common_forward_shift(leading)
        if shift is not None and old and self.base.backward_labels[index]:
            self.forward_shift[index] = shift
            self.forward_labels[index] = (
                old if not shift else [(values, cost + shift) for values, cost in old]
            )
            return
        here: dict[Values, int] = {}
        for before, move in leading:
            if self.forward_labels[before.index]:
                self.extend_forward(self.forward_labels[before.index], move, here)
        if here:
            self.work += len(here)
            self.forward_labels[index] = undominated_forward(self.weights.book, state, here)
        self.forward_shift[index] = _shift_between(old, self.forward_labels[index])

    def release_base(self) -> None:
        """Forget the labels that these were computed from."""
        del self.base

    def _common_forward_shift(self, leading: list[Arc]) -> int | None:
        """Return the shift that all arcs to a state share; None when something changed."""
        common: int | None = None
        for before, move in leading:
            if move.node_set is not None and self.changed[move.node_set.index]:
                return None
            index = before.index
            if not self.backward_labels[index] and not self.base.backward_labels[index]:
                continue
            shift = self.forward_shift[index]
            if shift is None:
                return None
            if not self.forward_labels[index]:
                continue
            if common is None:
                common = shift
            elif common != shift:
                return None
        return 0 if common is None else common

    def _update_node_set(self, index: int, applying: list[Arc]) -> None:
        """Set ``least_through`` of a node set's candidates, by a shift where that is exact."""
        unchanged, shift = self._node_set_shift(index, applying)
        if unchanged:
            if shift is not None:
                old = self.base.least_through
                for c in self.eligible[index]:
                    if c in old:
                        self.least_through[c] = old[c] + shift
            return
        for before, move in applying:
            if self.forward_labels[before.index] and self.backward_labels[move.target.index]:
                self.update_least_through(move, self.forward_labels[before.index])
        self.complete_node_set(index)

    def _node_set_shift(self, index: int, applying: list[Arc]) -> tuple[bool, int | None]:
        """Tell whether all arcs of a node set are shifted alike, and by how much.

        The amount is None where no cover applies the node set.
        """
        if self.changed[index]:
            return False, None
        common: int | None = None
        for before, move in applying:
            here, there = before.index, move.target.index
            now = bool(self.forward_labels[here]) and bool(self.backward_labels[there])
            base_had = bool(self.base.forward_labels[here]) and bool(
                self.base.backward_labels[there]
            )
            if now != base_had:
                return False, None
            if now:
                forward, backward = self.forward_shift[here], self.backward_shift[there]
                if forward is None or backward is None:
                    return False, None
                if common is not None and common != forward + backward:
                    return False, None
                common = forward + backward
        return True, common


def _shift_between(
    old: Sequence[BackwardLabel] | Sequence[ForwardLabel],
    new: Sequence[BackwardLabel] | Sequence[ForwardLabel],
) -> int | None:
    """Return the amount that turns one list of labels into the other; None when there is none."""
    if len(old) != len(new):
        return None
    if not old:
        return 0
    amount = new[0][1] - old[0][1]
    for (key, cost), (other, price) in zip(old, new, strict=True):
        if price - cost != amount or key != other:
            return None
    return amount
