"""Immediate post-dominators of a DAG given in topological order."""

from __future__ import annotations

from collections.abc import Sequence

from collage_engine.records.numbering import NodeIndex


def post_dominators(
    inputs: Sequence[Sequence[NodeIndex]], outputs: set[NodeIndex]
) -> list[NodeIndex | None]:
    """For each node the nearest node that every path from it to the outside passes; None when
    there is none (outputs, dead nodes, paths that end in different outputs).

    The least common ancestor of a node's users in the tree built so far, users first
    (Cooper, Harvey and Kennedy 2001, on a DAG one pass is enough).
    """
    users: list[list[NodeIndex]] = [[] for _ in inputs]
    for node, sources in enumerate(inputs):
        for source in dict.fromkeys(sources):
            users[source].append(NodeIndex(node))
    parent: list[NodeIndex | None] = [None] * len(inputs)
    depth = [0] * len(inputs)
    for node in range(len(inputs) - 1, -1, -1):
        if node in outputs or not users[node]:
            continue
        found: NodeIndex | None = users[node][0]
        for user in users[node][1:]:
            other: NodeIndex | None = user
            while found is not None and other is not None and found != other:
                if depth[found] >= depth[other]:
                    found = parent[found]
                else:
                    other = parent[other]
            if found is None or other is None:
                found = None
                break
        parent[node] = found
        depth[node] = 0 if found is None else depth[found] + 1
    return parent
