"""Finds groups of operators that can be drawn as one box: name scopes, partitions, sections.

*Name scopes* come from the ONNX names (``/layer1/layer1.0/conv1/Conv`` is in ``layer1``, then
``layer1.0``…). Models without slashes in their names are cut at the other usual separators,
and a level that would still show too many boxes is cut into *sections* of consecutive
operators: the first view of a large model must be small whatever its names are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.placement import Placement

GroupKind = Literal["scope", "section", "partition"]


@dataclass(frozen=True)
class Group:
    """Operators under one name; ``parent`` is the id of the group around it, if any."""

    id: str
    label: str
    kind: GroupKind
    members: tuple[int, ...]
    parent: str | None = None


FIRST_VIEW_LIMIT = 400
"""Number of boxes above which a graph opens collapsed; chosen."""
COLLAPSE_ABOVE = 150
"""A placed graph of more operators is drawn with its partitions collapsed at first; chosen."""
FEWEST_BOXES = 8
"""Placements of fewer partitions are drawn by operators: so few boxes would say nothing. Chosen."""
MOST_OF_OPERATORS = 0.75
"""Partitions per operator up to which collapsing them makes a graph smaller; chosen."""
_SECTION_BOXES = 120
"""Number of sections, at most, of a graph whose names do not help to divide it; chosen."""


def _scope_path(name: str) -> tuple[str, ...]:
    if "/" in name:
        parts = [part for part in name.split("/") if part]
    else:
        parts = [part for part in re.split(r"[.:]|__|_(?=[a-z]+\d)", name) if part]
    return tuple(parts[:-1])


def name_scopes(graph: OperatorGraph) -> tuple[Group, ...]:
    """Find the name scopes of at least two operators, outer ones first; equal ones are merged."""
    members: dict[tuple[str, ...], list[int]] = {}
    for at, call in enumerate(graph.calls):
        path = _scope_path(call.onnx_nodes[-1] if call.onnx_nodes else call.name)
        for depth in range(1, len(path) + 1):
            members.setdefault(path[:depth], []).append(at)
    groups: dict[tuple[str, ...], Group] = {}
    for path in sorted(members, key=lambda p: (len(p), members[p][0])):
        operators = members[path]
        if len(operators) < 2 or len(operators) == graph.count:
            continue
        parent = next((path[:d] for d in range(len(path) - 1, 0, -1) if path[:d] in groups), None)
        if parent is not None and len(groups[parent].members) == len(operators):
            continue
        groups[path] = Group(
            id="scope:" + "/".join(path),
            label="/".join(path[len(parent or ()) :]),
            kind="scope",
            members=tuple(operators),
            parent=groups[parent].id if parent is not None else None,
        )
    return tuple(groups.values())


def sections(graph: OperatorGraph, groups: Iterable[Group]) -> tuple[Group, ...]:
    """Add sections where the scopes alone would show too many boxes.

    Args:
        graph: The graph.
        groups: Its name scopes.

    Returns:
        Groups that nest, and that leave at most ``FIRST_VIEW_LIMIT`` boxes at the top.
    """
    scopes = list(groups)
    top = [g for g in scopes if g.parent is None]
    covered = {m for g in top for m in g.members}
    loose = [at for at in range(graph.count) if at not in covered]
    if len(loose) + len(top) <= FIRST_VIEW_LIMIT:
        return tuple(scopes)
    # Too many boxes at the top: consecutive operators become sections, and the scopes that lie
    # wholly inside one stay as its children; the others are dropped, since groups must nest.
    size = max(25, -(-graph.count // _SECTION_BOXES))
    made = [
        Group(
            id=f"section:{at // size}",
            label=_section_label(graph, range(at, min(at + size, graph.count))),
            kind="section",
            members=tuple(range(at, min(at + size, graph.count))),
        )
        for at in range(0, graph.count, size)
    ]
    kept: list[Group] = []
    alive: set[str] = set()
    for group in scopes:
        if group.members[0] // size != group.members[-1] // size:
            continue
        parent = group.parent if group.parent in alive else made[group.members[0] // size].id
        alive.add(group.id)
        kept.append(Group(group.id, group.label, group.kind, group.members, parent))
    return (*made, *kept)


def _section_label(graph: OperatorGraph, members: range) -> str:
    """Returns a section's first and last operator and its content: ``0–24 · Conv ×9, Add ×8``."""
    return f"{members[0]}–{members[-1]} · {graph.content(members)}"


def partition_groups(placement: Placement) -> tuple[Group, ...]:
    """Return the partitions with more than one operator, as groups."""
    return tuple(
        Group(id=f"partition:{p.id}", label=p.id, kind="partition", members=p.nodes)
        for p in placement.partitions
        if len(p.nodes) > 1
    )


@dataclass(frozen=True)
class DisplayBox:
    """One box: an operator, a collapsed group, an input or an output of the graph."""

    kind: Literal["operator", "group", "input", "output"]
    members: tuple[int, ...]
    """Operator numbers that are drawn as this box; of an input or output, its item number."""
    group: str | None = None
    label: str = ""


@dataclass(frozen=True)
class DisplayGraph:
    """The boxes that are drawn, and the edges between them."""

    boxes: tuple[DisplayBox, ...]
    edges: tuple[tuple[int, int], ...]
    """Pairs of the numbers of two boxes, without duplicates and loops."""
    box_of: tuple[int, ...]
    """The number of the box in which each item is drawn."""


def display_graph(
    graph: OperatorGraph, groups: Mapping[str, Group], collapsed: Iterable[str]
) -> DisplayGraph:
    """Return the graph with some groups drawn as one box each.

    Args:
        graph: The graph.
        groups: Every group by its id.
        collapsed: Ids of the groups to draw as one box; of nested ones the outermost counts.
    """
    box_of = [-1] * graph.items
    boxes: list[DisplayBox] = []
    chosen = sorted((groups[g] for g in collapsed if g in groups), key=lambda g: -len(g.members))
    owner: dict[int, Group] = {}
    for group in chosen:
        for member in group.members:
            owner.setdefault(member, group)
    box_of_group: dict[str, int] = {}
    for at in range(graph.count):
        inside = owner.get(at)
        if inside is None:
            box_of[at] = len(boxes)
            boxes.append(DisplayBox("operator", (at,), None, graph.name(at)))
            continue
        if inside.id not in box_of_group:
            box_of_group[inside.id] = len(boxes)
            own = tuple(m for m in inside.members if owner[m] is inside)
            boxes.append(DisplayBox("group", own, inside.id, inside.label))
        box_of[at] = box_of_group[inside.id]
    for item in range(graph.count, graph.items):
        is_input = item < graph.count + len(graph.inputs)
        box_of[item] = len(boxes)
        boxes.append(DisplayBox("input" if is_input else "output", (item,), None, graph.name(item)))
    edges = dict.fromkeys((box_of[a], box_of[b]) for a, b in graph.edges if box_of[a] != box_of[b])
    return DisplayGraph(tuple(boxes), tuple(edges), tuple(box_of))


def partitions_help(operators: int, placement: Placement) -> bool:
    """Tells whether collapsing the partitions of a placement makes its graph easier to read.

    Args:
        operators: How many operators the graph has.
        placement: Its placement.
    """
    return FEWEST_BOXES <= len(placement.partitions) <= operators * MOST_OF_OPERATORS


def first_view(graph: OperatorGraph, groups: Iterable[Group]) -> frozenset[str]:
    """Returns the ids of the groups that are collapsed when a model is first shown.

    There are none if the model is small.
    """
    if graph.count <= FIRST_VIEW_LIMIT:
        return frozenset()
    every = list(groups)
    children: dict[str | None, list[Group]] = {}
    for group in every:
        children.setdefault(group.parent, []).append(group)
    in_groups = {m for g in children.get(None, []) for m in g.members}
    collapsed = {g.id for g in children.get(None, [])}
    boxes = len(collapsed) + graph.count - len(in_groups)
    # Open a whole family of siblings while the picture stays small: opening only some of many
    # equal layers would say that they differ.
    while True:
        families: dict[str | None, list[Group]] = {}
        for group in every:
            if group.id in collapsed and children.get(group.id):
                families.setdefault(group.parent, []).append(group)
        for family in families.values():
            inner = [child for group in family for child in children[group.id]]
            loose = sum(len(g.members) for g in family) - sum(len(g.members) for g in inner)
            after = boxes - len(family) + len(inner) + loose
            if after <= FIRST_VIEW_LIMIT:
                collapsed.difference_update(g.id for g in family)
                collapsed.update(g.id for g in inner)
                boxes = after
                break
        else:
            return frozenset(collapsed)
