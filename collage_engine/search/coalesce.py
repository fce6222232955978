"""Proposals to merge adjacent partitions of one toolchain.

TVM's Collage merges after the search (MaxCoalesce), sums the costs and may make partitions that
overlap or wait for each other. Here a merge is a *proposal*: a node set for a toolchain, valid
(convex) and acyclic in the cover it comes from. It becomes a candidate, is measured, and is chosen
by the next search when it is better; nothing is merged unmeasured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.problem import CandidateId

if TYPE_CHECKING:
    from collage_engine.search.problem import Problem, ProblemCandidate


MOST_PROPOSALS = 256
"""Proposals at most (a count; chosen: each of them costs a measurement)."""


class MergeProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A merge of partitions that should be measured as a candidate."""

    nodes: tuple[int, ...]
    """Ascending."""
    toolchain: str
    takes: dict[int, str] = {}
    """Formats of the inputs from outside, as its parts take them."""
    gives: dict[int, str] = {}
    """Formats of the values that leave it, as its parts give them."""
    parts: tuple[CandidateId, ...]
    """The candidates it merges."""


def coalesce(
    problem: Problem,
    covers: Iterable[Sequence[CandidateId]],
    *,
    may_merge: Callable[[tuple[int, ...], str], bool] = lambda nodes, toolchain: True,
    limit: int = MOST_PROPOSALS,
) -> list[MergeProposal]:
    """Propose merges of adjacent partitions of one toolchain in these covers.

    Every adjacent pair is proposed, and what is left when merging goes on until nothing more can be
    merged. Sets that the toolchain already has as a candidate (measured or not) are left out.

    Args:
        problem: The problem.
        covers: Covers of it.
        may_merge: Tells of nodes and toolchain whether they may be merged; it can refuse what is
            too large or not supported.
        limit: The most proposals.
    """
    known = {str(c.id): c for c in problem.candidates}
    have = {
        (frozenset(c.nodes), c.toolchain, *_sorted(c.takes, c.gives)) for c in problem.candidates
    }
    found: dict[tuple[object, ...], MergeProposal] = {}
    for cover in covers:
        quotient = _Quotient(problem, [known[str(name)] for name in cover])
        for group in quotient.merges(may_merge):
            parts = [quotient.parts[p] for p in sorted(group)]
            nodes = frozenset(n for part in parts for n in part.nodes)
            takes, gives = quotient.border(parts, nodes)
            key = (nodes, parts[0].toolchain, *_sorted(takes, gives))
            if key not in have and key not in found:
                found[key] = MergeProposal(
                    nodes=tuple(sorted(nodes)),
                    toolchain=parts[0].toolchain,
                    takes=takes,
                    gives=gives,
                    parts=tuple(part.id for part in parts),
                )
            if len(found) >= limit:
                return list(found.values())
    return list(found.values())


def _sorted(takes: dict[int, str], gives: dict[int, str]) -> tuple[object, ...]:
    return tuple(sorted(takes.items())), tuple(sorted(gives.items()))


class _Quotient:
    """The quotient graph of a cover: its partitions and which feeds which."""

    def __init__(self, problem: Problem, parts: list[ProblemCandidate]) -> None:
        self.parts = parts
        self._problem = problem
        owner = {node: at for at, part in enumerate(parts) for node in part.nodes}
        self.users: list[set[int]] = [set() for _ in parts]
        for node in problem.nodes:
            for producer in node.inputs:
                if owner[producer] != owner[node.id]:
                    self.users[owner[producer]].add(owner[node.id])

    def border(
        self, parts: list[ProblemCandidate], nodes: frozenset[int]
    ) -> tuple[dict[int, str], dict[int, str]]:
        """Return what merged parts take and give, each value in the format of its part.

        A value that two parts take in different formats is taken as the first one does: the
        other conversion becomes the toolchain's own.
        """
        takes: dict[int, str] = {}
        for part in parts:
            for source, name in part.takes.items():
                if source not in nodes:
                    takes.setdefault(source, name)
        leaving = set(self._problem.outputs) | {
            source for node in self._problem.nodes if node.id not in nodes for source in node.inputs
        }
        gives = {
            node: name for part in parts for node, name in part.gives.items() if node in leaving
        }
        return takes, gives

    def merges(self, may_merge: Callable[[tuple[int, ...], str], bool]) -> list[set[int]]:
        """Return groups of partitions that can be merged: adjacent pairs, then maximal ones."""
        groups = [{at} for at in range(len(self.parts))]
        of = list(range(len(self.parts)))
        pairs = [
            (a, b)
            for a in range(len(self.parts))
            for b in sorted(self.users[a])
            if self.parts[a].toolchain == self.parts[b].toolchain
        ]
        found: list[set[int]] = []
        for a, b in pairs:
            if not self._detour({a}, {b}, of, groups) and self._allowed({a, b}, may_merge):
                found.append({a, b})
        for a, b in pairs:
            one, two = of[a], of[b]
            if one == two or not groups[two]:
                continue
            both = groups[one] | groups[two]
            clash = self._detour(groups[one], groups[two], of, groups) or self._detour(
                groups[two], groups[one], of, groups
            )
            if clash or not self._allowed(both, may_merge):
                continue
            groups[one] = both
            groups[two] = set()
            for at in both:
                of[at] = one
        found += [group for group in groups if len(group) > 1]
        return found

    def _allowed(self, group: set[int], may_merge: Callable[[tuple[int, ...], str], bool]) -> bool:
        nodes = tuple(sorted(n for at in group for n in self.parts[at].nodes))
        return may_merge(nodes, self.parts[min(group)].toolchain)

    def _detour(
        self, start: set[int], goal: set[int], of: list[int], groups: list[set[int]]
    ) -> bool:
        """Tell whether a path leads from one group to the other through a third."""
        direct = start | goal
        stack = [u for at in start for u in self.users[at] if u not in direct]
        seen: set[int] = set()
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            for member in groups[of[at]]:
                seen.add(member)
                for user in self.users[member]:
                    if user in goal:
                        return True
                    if user not in start and user not in seen:
                        stack.append(user)
        return False
