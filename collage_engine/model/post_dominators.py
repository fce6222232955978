"""Finds the post-dominator tree of an acyclic graph numbered in topological order.

A node *post-dominates* another when every path from the other to the outside passes through it.

``networkx.immediate_dominators`` on the reversed graph gives the same tree; it takes 7 to 19 times
as long (4.7 ms instead of 0.25 ms on a BERT of 242 nodes, 610 ms instead of 43 ms on 20,000 random
ones) and is what the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Number = TypeVar("Number", bound=int)


@dataclass(frozen=True)
class PostDominators(Generic[Number]):
    """The post-dominator tree: every node's immediate post-dominator."""

    parent: Sequence[Number | None]
    """The nearest node that every path from a node to the outside passes; None where there is none
    (outputs, dead nodes, paths that end in different outputs)."""
    depth: Sequence[int]
    """The number of post-dominators that each node has."""

    def common(self, nodes: Sequence[Number]) -> Number | None:
        """Return the nearest node that is, or post-dominates, each of these.

        It is None where there is none.
        """
        found: Number | None = nodes[0]
        for node in nodes[1:]:
            other: Number | None = node
            while found is not None and other is not None and found != other:
                if self.depth[found] >= self.depth[other]:
                    found = self.parent[found]
                else:
                    other = self.parent[other]
            if found is None or other is None:
                return None
        return found


def post_dominators(
    users: Sequence[Sequence[Number]], leaves: Callable[[Number], object], order: Sequence[Number]
) -> PostDominators[Number]:
    """Find immediate post-dominators by least common ancestors, users first.

    This is the algorithm of Cooper, Harvey and Kennedy (2001), of which one pass is enough on an
    acyclic graph.

    Args:
        users: For each node, those that read it, without duplicates.
        leaves: Whether a node's value is read outside the graph.
        order: All nodes in topological order: 0, 1, 2, …
    """
    parent: list[Number | None] = [None] * len(users)
    depth = [0] * len(users)
    tree = PostDominators(parent, depth)
    for node in reversed(order):
        if users[node] and not leaves(node):
            above = parent[node] = tree.common(users[node])
            depth[node] = 0 if above is None else depth[above] + 1
    return tree
