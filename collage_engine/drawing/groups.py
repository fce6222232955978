"""Finds groups of ONNX nodes that can be drawn as one box: name scopes, partitions, sections.

*Name scopes* are the modules that the exporter wrote into the file, or come from the nodes' names
(``/layer1/layer1.0/conv1/Conv`` is in ``layer1``, then ``layer1.0``…). Models without slashes in
their names are cut at the other usual separators. A scope is a connected part of the model: names
such as ``p2o.Conv.12`` only say the type of a node. A level that would still show too many boxes is
cut into *sections* of consecutive nodes, where few values pass from one to the next: the labels of
a first view must be legible whatever the names are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from collage_engine.drawing.layout import AT_A_GLANCE, crossings
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.placement import Placement

GroupKind = Literal["scope", "section", "partition"]
Kind = Literal["node", "operator", "group", "input", "output"]


@dataclass(frozen=True)
class Group:
    """The operators of some nodes under one name; ``parent`` is the group around it, if any."""

    id: str
    label: str
    kind: GroupKind
    members: tuple[int, ...]
    parent: str | None = None


LEGIBLE_BOXES = 150
"""Nodes above which a graph opens by scopes or sections, or by partitions where it is placed.

In the first window the labels of so many boxes, a chain with branches, are 9 pixels high; those of
200 are less than ``LEGIBLE_PX``."""
CONNECTED = 0.5
"""Share of a scope's nodes that must be connected for it to be a part of the model, and no name of
a type; chosen."""
MOST_OF_NODES = 0.75
"""Partitions per node up to which collapsing them makes a graph smaller; chosen."""
_SECTION_BOXES = LEGIBLE_BOXES // 2
"""Sections into which too many boxes side by side are cut, at most."""


def _scope_path(name: str) -> tuple[str, ...]:
    if "/" in name:
        parts = [part for part in name.split("/") if part]
    else:
        parts = [part for part in re.split(r"[.:]|__|_(?=[a-z]+\d)", name) if part]
    return tuple(parts[:-1])


def name_scopes(graph: OperatorGraph) -> tuple[Group, ...]:
    """Find the name scopes of at least two nodes, outer ones first; equal ones are merged."""
    held: dict[tuple[str, ...], list[int]] = {}
    for node, operators in enumerate(graph.nodes):
        call = graph.calls[operators[0]]
        path = call.scope or _scope_path(call.onnx_nodes[-1] if call.onnx_nodes else call.name)
        for depth in range(1, len(path) + 1):
            held.setdefault(path[:depth], []).append(node)
    groups: dict[tuple[str, ...], Group] = {}
    near = _neighbours(graph)
    for path in sorted(held, key=lambda p: (len(p), held[p][0])):
        nodes = held[path]
        if len(nodes) < 2 or len(nodes) == len(graph.nodes) or not _is_connected(nodes, near):
            continue
        parent = next((path[:d] for d in range(len(path) - 1, 0, -1) if path[:d] in groups), None)
        if parent is not None and len(held[parent]) == len(nodes):
            continue
        groups[path] = Group(
            id="scope:" + "/".join(path),
            label="/".join(path[len(parent or ()) :]),
            kind="scope",
            members=tuple(sorted(member for node in nodes for member in graph.nodes[node])),
            parent=groups[parent].id if parent is not None else None,
        )
    return tuple(groups.values())


def _neighbours(graph: OperatorGraph) -> dict[int, set[int]]:
    """Return by node the nodes that it reads and those that read it."""
    near: dict[int, set[int]] = {node: set() for node in range(len(graph.nodes))}
    for a, b in graph.edges:
        if a < graph.count and b < graph.count and graph.node_of[a] != graph.node_of[b]:
            near[graph.node_of[a]].add(graph.node_of[b])
            near[graph.node_of[b]].add(graph.node_of[a])
    return near


def _is_connected(nodes: Collection[int], near: Mapping[int, Collection[int]]) -> bool:
    """Tell whether most of some nodes are connected with one another through them alone.

    Args:
        nodes: The nodes of a scope. Exporters put a constant or a cast of a layer elsewhere.
        near: The nodes next to each node.
    """
    left, largest = set(nodes), 0
    while left:
        reached = [left.pop()]
        for node in reached:
            more = left.intersection(near[node])
            left -= more
            reached += more
        largest = max(largest, len(reached))
    return largest >= CONNECTED * len(nodes)


def sections(graph: OperatorGraph, groups: Iterable[Group]) -> tuple[Group, ...]:
    """Add sections wherever scopes and nodes side by side would be too many boxes.

    Args:
        graph: The graph.
        groups: Its name scopes.

    Returns:
        Groups that nest, none of which has more than ``LEGIBLE_BOXES`` boxes directly inside; nor
        has the graph.
    """
    scopes = {group.id: group for group in groups}
    inside: dict[str | None, list[tuple[int, Group | None]]] = {}
    """What lies directly in a group, or in none: the place of its first node, and its group."""
    parent_of: dict[int, str] = {}
    for group in scopes.values():  # inner ones come last
        parent_of.update((graph.node_of[member], group.id) for member in group.members)
        first = graph.node_of[group.members[0]]
        inside.setdefault(group.parent, []).append((first, group))
    for node in range(len(graph.nodes)):
        inside.setdefault(parent_of.get(node), []).append((node, None))
    made: list[Group] = []
    # How many nodes before each node have readers from it on.
    spans = ((node, max(near | {node})) for node, near in _neighbours(graph).items())
    passing = crossings(spans, len(graph.nodes))
    for parent, boxes in inside.items():
        if len(boxes) <= LEGIBLE_BOXES:
            continue
        boxes.sort(key=lambda box: box[0])
        size = -(-len(boxes) // _SECTION_BOXES)
        begin, number = 0, 0
        while begin < len(boxes):
            ends = range(begin + size, min(begin + 2 * size, len(boxes)))
            end = min(ends, key=lambda at: passing[boxes[at][0]], default=len(boxes))
            if end == len(boxes) - 1:
                end = len(boxes)  # one box would be a section by itself
            run = boxes[begin:end]
            section = _section(graph, f"section:{parent or ''}:{number}", parent, run)
            begin, number = end, number + 1
            made.append(section)
            for _, inner in run:
                if inner is not None:
                    scopes[inner.id] = replace(inner, parent=section.id)
    return (*made, *scopes.values())


def _section(
    graph: OperatorGraph, name: str, parent: str | None, run: Sequence[tuple[int, Group | None]]
) -> Group:
    """Return boxes side by side as a group, called ``Conv ×9 · 0–24`` or ``layer.0 – layer.2``."""
    members: list[int] = []
    for node, group in run:
        members += graph.nodes[node] if group is None else group.members
    (first, first_group), (last, last_group) = run[0], run[-1]
    # What is in it first: a box cuts what is too long for it.
    label = f"{graph.content(members)} · {first}–{last}"
    if first_group is not None and last_group is not None:
        label = f"{first_group.label} – {last_group.label}"
    return Group(name, label, "section", tuple(sorted(members)), parent)


def partition_groups(graph: OperatorGraph, placement: Placement) -> tuple[Group, ...]:
    """Return the partitions of more than one node, as groups."""
    return tuple(
        Group(id=f"partition:{p.id}", label=p.id, kind="partition", members=p.nodes)
        for p in placement.partitions
        if graph.count_nodes(p.nodes) > 1
    )


def equal_blocks(graph: OperatorGraph, groups: Iterable[Group]) -> list[list[tuple[int, ...]]]:
    """Return the operators of scopes that do the same work, such as the layers of a transformer.

    Their names differ in numbers only, and their operators are of the same types and make values of
    the same shapes, in order. Of nested scopes the outer ones count.
    """
    families: dict[object, list[tuple[int, ...]]] = {}
    for group in groups:
        if group.kind == "scope":
            work = [(graph.calls[k].op, *map(str, graph.calls[k].types)) for k in group.members]
            families.setdefault((_without_numbers(group), tuple(work)), []).append(group.members)
    blocks, held = [], set[int]()
    for family in sorted(families.values(), key=lambda family: -len(family[0])):
        outer = [members for members in family if held.isdisjoint(members)]
        if len(outer) > 1:
            blocks.append(outer)
            held.update(*outer)
    return blocks


def _without_numbers(group: Group) -> str:
    return re.sub(r"\d+", "", group.id)


@dataclass(frozen=True)
class DisplayBox:
    """One box: an ONNX node, an operator inside one, a group, an input or an output."""

    kind: Kind
    members: tuple[int, ...]
    """Operator numbers that are drawn as this box; of an input or output, its item number."""
    group: str | None = None
    label: str = ""

    @property
    def is_work(self) -> bool:
        """Return whether it stands for operators."""
        return self.kind not in ("input", "output")


@dataclass(frozen=True)
class DisplayGraph:
    """The boxes that are drawn, and the edges between them."""

    boxes: tuple[DisplayBox, ...]
    edges: tuple[tuple[int, int], ...]
    """Pairs of the numbers of two boxes, without duplicates and loops."""
    box_of: tuple[int, ...]
    """The number of the box in which each item is drawn."""


def display_graph(
    graph: OperatorGraph,
    groups: Mapping[str, Group],
    collapsed: Iterable[str],
    opened: Collection[int] = (),
) -> DisplayGraph:
    """Return the graph with its ONNX nodes, and some groups of them, drawn as one box each.

    Args:
        graph: The graph.
        groups: Every group by its id.
        collapsed: Ids of the groups to draw as one box; of nested ones the outermost counts.
        opened: Places of the nodes whose operators are drawn instead.
    """
    box_of = [-1] * len(graph.names)
    boxes: list[DisplayBox] = []
    chosen = sorted((groups[g] for g in collapsed if g in groups), key=lambda g: -len(g.members))
    owner: dict[int, Group] = {}
    for group in chosen:
        for member in group.members:
            owner.setdefault(member, group)
    box_of_group: dict[str, int] = {}
    for node, operators in enumerate(graph.nodes):
        inside = owner.get(operators[0])
        if inside is not None:
            if inside.id not in box_of_group:
                box_of_group[inside.id] = len(boxes)
                own = tuple(m for m in inside.members if owner[m] is inside)
                boxes.append(DisplayBox("group", own, inside.id, inside.label))
            for at in operators:
                box_of[at] = box_of_group[inside.id]
        elif node in opened and len(operators) > 1:
            for at in operators:
                box_of[at] = len(boxes)
                boxes.append(DisplayBox("operator", (at,), None, graph.names[at]))
        else:
            for at in operators:
                box_of[at] = len(boxes)
            boxes.append(DisplayBox("node", operators, None, graph.names[operators[0]]))
    for item in range(graph.count, len(graph.names)):
        is_input = item < graph.count + len(graph.inputs)
        box_of[item] = len(boxes)
        boxes.append(
            DisplayBox("input" if is_input else "output", (item,), None, graph.names[item])
        )
    edges = dict.fromkeys((box_of[a], box_of[b]) for a, b in graph.edges if box_of[a] != box_of[b])
    return DisplayGraph(tuple(boxes), tuple(edges), tuple(box_of))


def partitions_help(nodes: int, placement: Placement) -> bool:
    """Tells whether a graph is read better with the partitions of its placement collapsed.

    Args:
        nodes: How many ONNX nodes the graph has.
        placement: Its placement.
    """
    count = len(placement.partitions)
    return nodes > LEGIBLE_BOXES and AT_A_GLANCE < count <= nodes * MOST_OF_NODES


def first_view(graph: OperatorGraph, groups: Iterable[Group]) -> frozenset[str]:
    """Return the ids of the groups that are collapsed when a model is first shown.

    There are none if the model is small.
    """
    if len(graph.nodes) <= LEGIBLE_BOXES:
        return frozenset()
    every = list(groups)
    children: dict[str | None, list[Group]] = {}
    for group in every:
        children.setdefault(group.parent, []).append(group)
    in_groups = graph.count_nodes(m for g in children.get(None, []) for m in g.members)
    collapsed = {g.id for g in children.get(None, [])}
    boxes = len(collapsed) + len(graph.nodes) - in_groups
    size = {group.id: graph.count_nodes(group.members) for group in every}
    # Open all scopes whose names differ in numbers only while the picture stays small: opening some
    # of many equal layers would say that they differ.
    while True:
        families: dict[str, list[Group]] = {}
        for group in every:
            if group.id in collapsed and children.get(group.id):
                families.setdefault(_without_numbers(group), []).append(group)
        for family in families.values():
            inner = [child for group in family for child in children[group.id]]
            loose = sum(size[g.id] for g in family) - sum(size[g.id] for g in inner)
            after = boxes - len(family) + len(inner) + loose
            if after <= LEGIBLE_BOXES:
                collapsed.difference_update(g.id for g in family)
                collapsed.update(g.id for g in inner)
                boxes = after
                break
        else:
            return frozenset(collapsed)
