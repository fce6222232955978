"""Which device every node is on, and why.

The reason is a pin, a neighbour, the default, the cost, or that nothing on another device takes it.
Device pins rule candidates out; the search then chooses, with copies as transitions. What is
inferred here is read off the answer: nothing is decided, so planning again with what was inferred
as pins changes nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

import msgspec

from collage_engine.search.problem import HOST

if TYPE_CHECKING:
    from collage_engine.search.problem import Answer, Problem, ProblemCandidate

Why = Literal["pin", "neighbour", "default", "only", "cost"]


class NodeDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The device that a node is on."""

    node: int
    device: str
    why: Why
    """``pin``: a device pin holds the node. ``neighbour``: it is not pinned, but joined to a pinned
    node of this device by its partition or by values that need no copy. ``default``: it is on the
    default device. ``only``: nothing on another device takes it. ``cost``: it costs least there,
    copies included."""
    because: tuple[int, ...]
    """``pin``: indices of the pins. ``neighbour``: the nodes on the way to the pinned one."""


def infer_devices(problem: Problem, answer: Answer, default: str = HOST) -> dict[int, NodeDevice]:
    """Return the device of every node of the answer's cover, with its reason.

    Args:
        problem: The problem.
        answer: Its answer; without a cover nothing is inferred.
        default: The device of what no pin and no cost moves elsewhere.
    """
    known = {str(c.id): c for c in problem.candidates}
    owner = {n: known[str(name)] for name in answer.cover for n in known[str(name)].nodes}
    if not owner:
        return {}
    device = {node: candidate.device or HOST for node, candidate in owner.items()}
    pinned: dict[int, list[int]] = {}
    for index, pin in enumerate(problem.pins):
        if pin.device is not None:
            for node in pin.nodes:
                pinned.setdefault(node, []).append(index)
    towards = _towards(pinned, owner, device, _neighbours(problem))
    takers: dict[int, set[str]] = {node: set() for node in owner}
    for candidate in problem.candidates:
        if candidate.state != "invalid":
            for node in candidate.nodes:
                takers[node].add(candidate.device or HOST)
    places = {}
    for node in owner:
        why: Why
        because: tuple[int, ...] = ()
        if node in pinned:
            why, because = "pin", tuple(pinned[node])
        elif node in towards:
            why, because = "neighbour", _way(node, towards)
        else:
            elsewhere = takers[node] - {device[node]}
            why = "default" if device[node] == default else "cost" if elsewhere else "only"
        places[node] = NodeDevice(node=node, device=device[node], why=why, because=because)
    return places


def _neighbours(problem: Problem) -> dict[int, set[int]]:
    """Return the producers and consumers of every node."""
    near: dict[int, set[int]] = {node.id: set() for node in problem.nodes}
    for node in problem.nodes:
        for producer in node.inputs:
            near[node.id].add(producer)
            near[producer].add(node.id)
    return near


def _towards(
    pinned: dict[int, list[int]],
    owner: dict[int, ProblemCandidate],
    device: dict[int, str],
    near: dict[int, set[int]],
) -> dict[int, int]:
    """Return, per node that is joined to a pinned one on its device, the next node on the way."""
    members: dict[str, list[int]] = {}
    for node, candidate in owner.items():
        members.setdefault(str(candidate.id), []).append(node)
    towards: dict[int, int] = {}
    queue = deque(sorted(pinned))
    while queue:
        node = queue.popleft()
        together = members[str(owner[node].id)]
        for other in sorted(near[node].union(together)):
            if other in towards or other in pinned or device[other] != device[node]:
                continue
            towards[other] = node
            queue.append(other)
    return towards


def _way(node: int, towards: dict[int, int]) -> tuple[int, ...]:
    way = []
    while node in towards:
        node = towards[node]
        way.append(node)
    return tuple(way)
