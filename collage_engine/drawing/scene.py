"""Describes what is drawn and where: boxes, routes, jumps, outlines, transitions as data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from collage_engine.drawing.groups import (
    LEGIBLE_BOXES,
    DisplayGraph,
    Group,
    display_graph,
    first_view,
    name_scopes,
    partition_groups,
    partitions_help,
    sections,
)
from collage_engine.drawing.layout import ALONG_GAP, BOX_HEIGHT, BOX_WIDTH, FAN, Layout, lay_out
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.graph import GraphRecord
from collage_engine.records.placement import Partition, Placement
from collage_engine.wording.amounts import bytes_text, time_text, total
from collage_engine.wording.titles import toolchain_title

SKIPS_DRAWN = 2 * LEGIBLE_BOXES
"""Up to this many boxes every cut edge is drawn as a curve; in larger pictures only those of the
boxes that are selected, since more curves cannot be followed."""


@dataclass(frozen=True)
class Outline:
    """A partition in the picture: its boxes and the edges between them."""

    partition: str
    toolchain: str
    boxes: tuple[int, ...]
    edges: tuple[int, ...]
    """Numbers of edges inside the partition that have a route."""


@dataclass(frozen=True)
class Scene:
    """A laid out graph: boxes with their places, edges with their routes, jumps."""

    graph: OperatorGraph
    groups: Mapping[str, Group]
    display: DisplayGraph
    layout: Layout
    """Places and routes of boxes and edges; edges without a route are jumps."""
    upright: bool = True

    @cached_property
    def jumps_out(self) -> dict[int, list[int]]:
        """Return the boxes to which a box's cut edges lead, by box."""
        out: dict[int, list[int]] = {}
        for (a, b), route in zip(self.display.edges, self.layout.routes, strict=True):
            if not route:
                out.setdefault(a, []).append(b)
        return out

    @cached_property
    def jumps_in(self) -> dict[int, list[int]]:
        """Return the boxes from which a box's cut edges come, by box."""
        into: dict[int, list[int]] = {}
        for a, others in self.jumps_out.items():
            for b in others:
                into.setdefault(b, []).append(a)
        return into

    @cached_property
    def curves(self) -> frozenset[tuple[int, int]]:
        """Return the cut edges that are drawn as curves all the time, as pairs of boxes.

        A value that very many read, such as a mask or a shared constant, has stubs only.
        """
        if len(self.display.boxes) > SKIPS_DRAWN:
            return frozenset()
        few = {a: others for a, others in self.jumps_out.items() if len(others) <= FAN}
        return frozenset((a, b) for a, others in few.items() for b in others)

    def rectangle(self, box: int) -> tuple[float, float, float, float]:
        """Return left, top, width and height of a box."""
        x, y = self.layout.places[box]
        return x, y, BOX_WIDTH, BOX_HEIGHT

    def boxes_of(self, operators: Iterable[int]) -> set[int]:
        """Return the boxes in which operators are drawn."""
        return {self.display.box_of[at] for at in operators}


def outlines(shown: Scene, placement: Placement | None) -> tuple[Outline, ...]:
    """Return a placement's partitions in a scene; one inside a collapsed box has that box only."""
    if placement is None:
        return ()
    owners: dict[int, set[int]] = {}
    for at, partition in enumerate(placement.partitions):
        for operator in partition.nodes:
            if operator < shown.graph.count:
                owners.setdefault(shown.display.box_of[operator], set()).add(at)
    # A collapsed group that several partitions share belongs to none of the outlines.
    owner = {box: next(iter(held)) for box, held in owners.items() if len(held) == 1}
    boxes: dict[int, list[int]] = {}
    for box in sorted(owner):
        boxes.setdefault(owner[box], []).append(box)
    inside: dict[int, list[int]] = {}
    for number, (a, b) in enumerate(shown.display.edges):
        if a in owner and owner[a] == owner.get(b) and shown.layout.routes[number]:
            inside.setdefault(owner[a], []).append(number)
    return tuple(
        Outline(p.id, p.toolchain, tuple(boxes[at]), tuple(inside.get(at, ())))
        for at, p in enumerate(placement.partitions)
        if at in boxes
    )


def bridge(shown: Scene, edge: int) -> tuple[float, float, float, float] | None:
    """Return the rectangle between two boxes of neighbouring ranks that face each other, else None.

    A partition's tint fills it, so that a chain reads as one band. It never runs along a longer
    edge, where it would look like a wide flow of data.
    """
    if len(shown.layout.routes[edge]) != 2:
        return None
    one, two = (shown.layout.places[box] for box in shown.display.edges[edge])
    along, size = int(shown.upright), (BOX_WIDTH, BOX_HEIGHT)
    low, wide = max(one[1 - along], two[1 - along]), size[1 - along]
    wide -= abs(one[1 - along] - two[1 - along])
    begin, gap = one[along] + size[along], two[along] - one[along] - size[along]
    if wide <= size[1 - along] * 0.4 or not 0 < gap < 2 * ALONG_GAP:
        return None
    return (low, begin, wide, gap) if shown.upright else (begin, low, gap, wide)


def arrow_head(route: Sequence[tuple[float, float]], size: float) -> list[tuple[float, float]]:
    """Return the triangle at the end of a polyline.

    Args:
        route: At least two points.
        size: Length of the triangle, in scene units; it is as wide as that.

    Returns:
        The tip and the two other corners.
    """
    tip = route[-1]
    before = next((p for p in reversed(route[:-1]) if p != tip), tip)
    length = math.dist(before, tip) or 1.0
    x, y = (tip[0] - before[0]) / length, (tip[1] - before[1]) / length
    back = (tip[0] - x * size, tip[1] - y * size)
    half = size / 2
    return [tip, (back[0] - y * half, back[1] + x * half), (back[0] + y * half, back[1] - x * half)]


def skip_curve(shown: Scene, a: int, b: int) -> list[tuple[float, float]]:
    """Return the four points of the Bézier curve of an edge that the layout cuts.

    It leaves and enters at the right edges of the boxes, where the stubs are, and bends outwards
    so that it can be told from the straight routes.
    """
    ax, ay, w, h = shown.rectangle(a)
    bx, by, _, _ = shown.rectangle(b)
    start, end = (ax + w, ay + h * 0.75), (bx + w, by + h * 0.25)
    reach = BOX_HEIGHT + 0.08 * abs(end[1] - start[1])
    return [start, (start[0] + reach, start[1]), (end[0] + reach, end[1]), end]


def placement_scene(record: GraphRecord, placement: Placement | None) -> Scene:
    """Return the scene of a graph and its placement in one call, for reports.

    A large graph is drawn by its partitions, or else by its scopes.

    Args:
        record: The graph.
        placement: Its placement; None: there is none.
    """
    graph = OperatorGraph(record)
    groups = {g.id: g for g in sections(graph, name_scopes(graph))}
    closed = first_view(graph, groups.values())
    if placement is not None and partitions_help(len(graph.nodes), placement):
        groups = {g.id: g for g in partition_groups(graph, placement)}
        closed = frozenset(groups)
    display = display_graph(graph, groups, closed)
    return Scene(graph, groups, display, lay_out(len(display.boxes), display.edges))


@dataclass(frozen=True)
class DrawnTransition:
    """The values that pass along one drawn edge from one toolchain, format or device to another."""

    edge: int
    """Number of the edge in the display graph."""
    label: str
    """Their bytes, changes of format and device, and what the former cost: ``256 KiB``."""
    sentence: str
    """What passes from whom to whom, for tool tips."""


LETTER = 6.0
"""Width of a letter of a label, in units of the picture; that of its font, which is 10 units high,
rounded up."""


def labels_on_the_left(shown: Scene, arrows: Iterable[DrawnTransition]) -> frozenset[int]:
    """Return the edges whose labels stand on the left, because the right side is taken.

    There they would be written over the label of an arrow further to the right.
    """
    # Arrows end at the upper edges of boxes, which have one height in each row.
    ends = sorted(
        (round(y), x, arrow.edge, LETTER * len(arrow.label))
        for arrow in arrows
        for x, y in shown.layout.routes[arrow.edge][-1:]
    )
    return frozenset(
        edge
        for (y, x, edge, width), (next_y, next_x, *_) in itertools.pairwise(ends)
        if next_y == y and next_x - x < width
    )


def transitions(shown: Scene, placement: Placement | None) -> tuple[DrawnTransition, ...]:
    """Return the transitions of a placement that a scene draws as edges or jumps.

    Values that pass between two partitions of one toolchain, in one format on one device, are not
    among them: they only pay for a launch.

    Args:
        shown: The picture.
        placement: The placement; without one there are none.
    """
    if placement is None:
        return ()
    owner = {n: p for p in placement.partitions for n in p.nodes}
    known_us = {(c.node, c.source, c.target): c.us for c in placement.conversions}
    number = {edge: at for at, edge in enumerate(shown.display.edges)}
    passing: dict[int, dict[tuple[int, str, str], tuple[Partition, Partition]]] = {}
    """By drawn edge the values that pass, each in both formats, with who makes and reads it."""
    for a, b in shown.graph.edges:
        maker, reader = owner.get(a), owner.get(b)
        at = number.get((shown.display.box_of[a], shown.display.box_of[b]))
        if maker is None or reader is None or maker is reader or at is None:
            continue
        gives, takes = maker.gives.get(a, "plain"), reader.takes.get(a, "plain")
        here, there = (maker.toolchain, maker.device), (reader.toolchain, reader.device)
        if (*here, gives) != (*there, takes):
            passing.setdefault(at, {}).setdefault((a, gives, takes), (maker, reader))
    drawn = []
    for at, passed in sorted(passing.items()):
        maker, reader = next(iter(passed.values()))
        values = {value for value, *_ in passed}
        size = sum(kind.bytes for value in values for kind in shown.graph.calls[value].types)
        converted = [each for each in passed if each[1] != each[2]]
        ways = [f"{gives}→{takes}" for _, gives, takes in converted]
        if maker.device != reader.device:
            ways.append(f"{maker.device}→{reader.device}")
        us = total(map(known_us.get, converted))
        cost = [] if us is None else [time_text(us)]
        label = " ".join([bytes_text(size), *dict.fromkeys(ways), *cost])
        source, target = toolchain_title(maker.instance), toolchain_title(reader.instance)
        drawn.append(DrawnTransition(at, label, f"{source} hands {label} over to {target}"))
    return tuple(drawn)
