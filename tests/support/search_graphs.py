"""Makes graphs in the shapes of well-known models as search problems, ten candidates a node."""

from __future__ import annotations

import math
import random
from typing import Any

TOOLCHAINS = ("tvm", "onnxruntime", "onednn", "openblas")


class Graph:
    """Producers of each node, built one node at a time."""

    def __init__(self) -> None:
        self.inputs: list[list[int]] = []

    def add(self, *inputs: int) -> int:
        self.inputs.append(list(inputs))
        return len(self.inputs) - 1

    def run(self, length: int, *inputs: int) -> int:
        """Adds a chain of this many nodes and returns its last."""
        node = self.add(*inputs)
        for _ in range(length - 1):
            node = self.add(node)
        return node


def chain(count: int) -> Graph:
    graph = Graph()
    graph.run(count)
    return graph


def residual(count: int) -> Graph:
    """Returns bottleneck blocks: three convolutions with bias and activation, and an addition."""
    graph = Graph()
    node = graph.run(3)
    while len(graph.inputs) < count:
        side = graph.run(2, node) if len(graph.inputs) % 4 == 0 else node
        node = graph.add(graph.add(graph.run(8, node), side))
    return graph


def inception(count: int) -> Graph:
    graph = Graph()
    node = graph.run(4)
    while len(graph.inputs) < count:
        branches = [graph.run(length, node) for length in (3, 6, 6, 4)]
        node = graph.add(*branches)
    return graph


def nasnet(count: int) -> Graph:
    """Returns cells of five additions of two separable operators on the two previous cells."""
    graph = Graph()
    before = node = graph.run(3)
    rng = random.Random(5)
    while len(graph.inputs) < count:
        states = [graph.run(2, before), graph.run(2, node)]
        for _ in range(5):
            left, right = rng.choice(states), rng.choice(states)
            states.append(graph.add(graph.run(3, left), graph.run(2, right)))
        before, node = node, graph.add(*states[2:])
    return graph


def dense(count: int) -> Graph:
    """Returns dense blocks of six layers; each layer concatenates all before it in the block."""
    graph = Graph()
    node = graph.run(4)
    while len(graph.inputs) < count:
        features = [node]
        for _ in range(6):
            joined = graph.add(*features) if len(features) > 1 else features[0]
            features.append(graph.run(5, joined))
        node = graph.run(3, graph.add(*features))
    return graph


def transformer(count: int) -> Graph:
    """Returns encoder layers in the operators of importers: norms, Q/K/V, softmax, GELU."""
    graph = Graph()
    node = graph.run(2)
    while len(graph.inputs) < count:
        norm = _norm(graph, node)
        query, key, value = (graph.run(4, norm) for _ in range(3))
        scores = graph.add(graph.run(1, graph.add(query, key)))
        mixed = graph.run(4, graph.add(graph.run(1, scores), value))
        node = graph.add(node, mixed)
        norm = _norm(graph, node)
        wide = graph.run(2, norm)
        gate = graph.run(4, wide)
        node = graph.add(node, graph.run(2, graph.add(wide, gate)))
    return graph


def _norm(graph: Graph, node: int) -> int:
    mean = graph.add(node)
    centred = graph.add(node, mean)
    scale = graph.run(4, centred)
    return graph.run(2, graph.add(centred, scale))


def wide(count: int, lanes: int = 24) -> Graph:
    """Returns lanes that exchange values with their neighbours at every step: a wide graph."""
    graph = Graph()
    front = [graph.add() for _ in range(lanes)]
    while len(graph.inputs) < count:
        front = [graph.add(front[i], front[(i + 1) % lanes]) for i in range(lanes)]
    return graph


def branches(count: int, lanes: int = 24) -> Graph:
    """Returns chains of equal length beside each other, between one node and another."""
    graph = Graph()
    node = graph.run(1)
    graph.add(*[graph.run((count - 2) // lanes, node) for _ in range(lanes)])
    return graph


def six_branches(count: int) -> Graph:
    return branches(count, lanes=6)


def grid(count: int) -> Graph:
    """Returns a square in which every node takes the one above it and the one to its left."""
    graph, side = Graph(), math.isqrt(count)
    for row in range(side):
        for column in range(side):
            above = [(row - 1) * side + column] if row else []
            graph.add(*above, *([row * side + column - 1] if column else []))
    return graph


def ladder(count: int, lanes: int = 6) -> Graph:
    """Returns lanes that grow at random; half of the nodes take a value of another lane too."""
    rng, graph = random.Random(3), Graph()
    front = [graph.add() for _ in range(lanes)]
    while len(graph.inputs) < count:
        lane = rng.randrange(lanes)
        taken = {front[lane]}
        if rng.random() < 0.5:
            taken.add(front[rng.randrange(lanes)])
        front[lane] = graph.add(*sorted(taken))
    return graph


SHAPES = {
    "chain": chain,
    "residual": residual,
    "inception": inception,
    "nasnet": nasnet,
    "dense": dense,
    "transformer": transformer,
}
WIDE_SHAPES = {
    "wide": wide,
    "branches": branches,
    "six branches": six_branches,
    "grid": grid,
    "ladder": ladder,
}
"""Shapes whose state space grows with the power of their width."""


def problem_on(
    graph: Graph,
    *,
    per_node: int = 10,
    seed: int = 0,
    pairs: bool = True,
    largest: int = 5,
    multi: float = 0.1,
) -> dict[str, Any]:
    """Returns a problem on a graph: single candidates per node and toolchain, and fused ones.

    Args:
        graph: The graph.
        per_node: Candidates per node.
        seed: Seed of the random costs and candidates.
        pairs: Whether transitions have costs by pair of toolchains.
        largest: Nodes of the largest fused candidate.
        multi: Share of the fused ones that are grown in any direction (several exits).
    """
    rng = random.Random(seed)
    inputs = graph.inputs
    count = len(inputs)
    users: list[list[int]] = [[] for _ in range(count)]
    for node, producers in enumerate(inputs):
        for producer in set(producers):
            users[producer].append(node)
    base = [rng.choice([4.0, 9.0, 40.0, 120.0]) * rng.uniform(0.7, 1.3) for _ in range(count)]
    speed = {name: rng.uniform(0.9, 1.1) for name in TOOLCHAINS}
    candidates: list[dict[str, Any]] = []

    def add_candidate(members: list[int], name: str) -> None:
        work = sum(base[n] for n in members)
        gain = 1.0 - 0.04 * min(len(members) - 1, 6)
        candidates.append(
            {
                "id": len(candidates),
                "nodes": members,
                "toolchain": name,
                "cost_us": round(work * gain * speed[name] * rng.uniform(0.75, 1.35), 3),
            }
        )

    for node in range(count):
        for name in TOOLCHAINS:
            add_candidate([node], name)
    seen: set[tuple[int, ...]] = set()
    tries = 0
    while len(candidates) < per_node * count and tries < 20 * per_node * count:
        tries += 1
        members = _grown(rng, rng.randrange(count), inputs, users, largest, rng.random() < multi)
        if len(members) < 2 or tuple(members) in seen:
            continue
        seen.add(tuple(members))
        for name in rng.sample(TOOLCHAINS, rng.randint(1, 3)):
            add_candidate(members, name)
    transitions: dict[str, Any] = {"launch_us": 1.5}
    if pairs:
        transitions["pairs"] = [
            [a, b, 0.3 if a == b else round(rng.uniform(0.5, 4.0), 2)]
            for a in TOOLCHAINS
            for b in TOOLCHAINS
        ]
    return {
        "nodes": [{"id": n, "op": "op", "inputs": inputs[n]} for n in range(count)],
        "outputs": [n for n in range(count) if not users[n]],
        "candidates": candidates[: per_node * count],
        "transitions": transitions,
    }


def _grown(
    rng: random.Random,
    root: int,
    inputs: list[list[int]],
    users: list[list[int]],
    largest: int,
    anywhere: bool,
) -> list[int]:
    """Returns a connected convex set from a root, along single users or in any direction."""
    members = {root}
    size = rng.randint(2, largest)
    while len(members) < size:
        if anywhere:
            near = {p for n in members for p in inputs[n]} | {u for n in members for u in users[n]}
        else:
            last = max(members)
            near = set(users[last]) if len(users[last]) == 1 else set()
        near -= members
        if not near:
            break
        grown = members | {rng.choice(sorted(near))}
        if not _convex(grown, inputs):
            break
        members = grown
    return sorted(members)


def _convex(members: set[int], inputs: list[list[int]]) -> bool:
    after: set[int] = set()
    for node in range(min(members) + 1, max(members) + 1):
        if node in members:
            if any(i in after for i in inputs[node]):
                return False
        elif any(i in members or i in after for i in inputs[node]):
            after.add(node)
    return True
