"""Turns a scene into arrays that are quick to cull, and Qt shapes that are quick to draw.

One batching painter needs, for any viewport, the visible boxes and edge segments by colour:
boxes are found by comparing arrays (10,000 in tens of µs), segments likewise, and the Qt
rectangles and lines are made once per layout, not per frame.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PySide6.QtCore import QLineF, QPointF, QRectF
from PySide6.QtGui import QColor, QPolygonF

from collage_engine.drawing.box_styles import BoxStyle, LegendEntry
from collage_engine.drawing.groups import DisplayGraph
from collage_engine.drawing.layout import ALONG_GAP, ARROW, BOX_HEIGHT, BOX_WIDTH, Layout
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.scene import (
    DrawnTransition,
    Outline,
    Scene,
    arrow_head,
    bridge,
    labels_on_the_left,
)
from collage_engine.records.graph import GraphRecord

EMPTY = Scene(
    OperatorGraph(GraphRecord(nodes=(), parameters=(), outputs=())),
    {},
    DisplayGraph((), (), ()),
    Layout(places=[], routes=[], width=0.0, height=0.0),
)
"""What is drawn before there is a model."""


@dataclass
class Marks:
    """The marks that are drawn over the boxes; they change without a new layout."""

    selected: frozenset[int] = frozenset()
    """Numbers of the boxes that are selected."""
    primary: int | None = None
    candidate: frozenset[int] = frozenset()
    highlighted: frozenset[int] = frozenset()
    """Search results, or all boxes of one operator."""
    pinned: dict[int, str] = field(default_factory=dict)
    """The mark of each pinned box, e.g. ``⚲`` or ``⊘``, by the box's number."""
    dimmed: frozenset[int] = frozenset()
    measured_now: frozenset[int] = frozenset()
    """Numbers of the boxes whose operators are being measured."""
    stale: bool = False
    """Whether the picture is out of date: it is drawn paler."""


@dataclass(frozen=True)
class Crossing:
    """A transition as shapes that are quick to draw."""

    transition: DrawnTransition
    lines: tuple[QLineF, ...]
    head: QPolygonF
    """The arrow head, which points at the reader of the values."""
    bounds: QRectF
    label_at: QPointF
    """The point where the label's edge at the arrow is, in the middle of its height."""
    on_the_left: bool
    """Whether the label stands on the left of the arrow."""

    @classmethod
    def of(
        cls,
        transition: DrawnTransition,
        route: Sequence[tuple[float, float]],
        *,
        on_the_left: bool = False,
    ) -> Crossing:
        """Return the shapes of a transition along a route."""
        points = [QPointF(*point) for point in route]
        lines = tuple(QLineF(a, b) for a, b in itertools.pairwise(points))
        head = QPolygonF([QPointF(*p) for p in arrow_head(route, ARROW)])
        bounds = QPolygonF(points).boundingRect().adjusted(-ARROW - 120, -ARROW, ARROW + 120, ARROW)
        beside = QPointF(-ARROW if on_the_left else ARROW, -ALONG_GAP / 2)
        return cls(transition, lines, head, bounds, points[-1] + beside, on_the_left)


class Picture:
    """Arrays and shapes of one scene; ``set_colours`` exchanges colours only."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        places = np.asarray(scene.layout.places, dtype=float).reshape(-1, 2)
        self._boxes = np.hstack([places, np.add(places, (BOX_WIDTH, BOX_HEIGHT))])
        """Left, top, right and bottom of each box."""
        self.rectangles = [QRectF(x, y, BOX_WIDTH, BOX_HEIGHT) for x, y in scene.layout.places]
        segments: list[tuple[float, float, float, float]] = []
        for route in scene.layout.routes:
            segments.extend((*a, *b) for a, b in itertools.pairwise(route))
        ends = np.asarray(segments, dtype=float).reshape(-1, 2, 2)
        self._segments = np.hstack([ends.min(axis=1), ends.max(axis=1)])
        """Left, top, right and bottom of each segment of an edge."""
        self.lines = [QLineF(*values) for values in segments]
        self.styles: list[BoxStyle] = [BoxStyle()] * len(self.rectangles)
        self.legend: list[LegendEntry] = []
        self.outlines: tuple[Outline, ...] = ()
        self.shows_partitions = any(
            box.kind == "group" and str(box.group).startswith("partition:")
            for box in scene.display.boxes
        )
        """Whether partitions are drawn as one box each, also those of one operator."""
        self.is_scale = False
        """Whether colours are steps of a scale and not toolchains."""
        self.colour_of = np.zeros(len(self.rectangles), dtype=int)
        self.colours: list[QColor] = []
        self.partition_boxes: list[tuple[QRectF, Outline]] = []
        """Where a partition's label fits, and the partition."""
        self.shares: dict[str, float] = {}
        """Partition → share of the placement's latency, 0…1."""
        self._bands: dict[str, tuple[list[QRectF], list[QRectF], np.ndarray]] = {}
        self.crossings: list[Crossing] = []
        """The transitions between toolchains, formats or devices that have a route."""
        self.skips = [(a, b) for a, others in scene.jumps_out.items() for b in others]
        """The edges that the layout cuts."""

    @property
    def bounds(self) -> QRectF:
        """Return the whole scene with a margin."""
        width, height = self.scene.layout.width, self.scene.layout.height
        return QRectF(-40, -40, max(width, BOX_WIDTH) + 80, max(height, BOX_HEIGHT) + 80)

    def set_colours(
        self,
        styles: list[BoxStyle],
        legend: list[LegendEntry],
        outlines: tuple[Outline, ...],
        shares: dict[str, float],
        transitions: tuple[DrawnTransition, ...] = (),
    ) -> None:
        """Take new colours; the places stay.

        Args:
            styles: How each box is drawn.
            legend: What the colours mean.
            outlines: The partitions.
            shares: Partition → share of the placement's latency, 0…1.
            transitions: What passes between toolchains, formats or devices.
        """
        self.styles, self.legend, self.outlines, self.shares = styles, legend, outlines, shares
        self.is_scale = any(style.filled for style in styles)
        names = sorted({style.colour for style in styles})
        number = {name: at for at, name in enumerate(names)}
        self.colours = [QColor(name) for name in names]
        self.colour_of = np.fromiter((number[s.colour] for s in styles), int, len(styles))
        self._make_bands()
        routes = self.scene.layout.routes
        left = labels_on_the_left(self.scene, transitions)
        self.crossings = [
            Crossing.of(arrow, routes[arrow.edge], on_the_left=arrow.edge in left)
            for arrow in transitions
            if routes[arrow.edge]
        ]

    def _make_bands(self) -> None:
        """Make partitions' tints by colour: grown boxes, bridges between them, thin routes."""
        bands: dict[str, list[QRectF]] = {}
        self.partition_boxes = []
        for outline in self.outlines:
            rectangles = bands.setdefault(self.styles[outline.boxes[0]].colour, [])
            own = [self.rectangles[box] for box in outline.boxes]
            rectangles.extend(own)
            for edge in outline.edges:
                between = bridge(self.scene, edge)
                if between is not None:
                    rectangles.append(QRectF(*between))
            self.partition_boxes.append((_solid_part(own, not self.scene.upright), outline))
        self._bands = {}
        for colour, rectangles in bands.items():
            rim = [r.adjusted(-9, -9, 9, 9) for r in rectangles]
            fill = [r.adjusted(-7.5, -7.5, 7.5, 7.5) for r in rectangles]
            spans = np.array([(r.left(), r.top(), r.right(), r.bottom()) for r in rim])
            self._bands[colour] = (rim, fill, spans.reshape(-1, 4))

    def bands(self, area: QRectF) -> list[tuple[str, list[QRectF], list[QRectF]]]:
        """Return the partition tints that touch an area: (colour, rims, fills)."""
        touching = []
        for colour, (rim, fill, spans) in self._bands.items():
            inside = _touching(spans, area)
            if len(inside):
                touching.append((colour, [rim[i] for i in inside], [fill[i] for i in inside]))
        return touching

    def boxes_in(self, area: QRectF) -> np.ndarray:
        """Return the numbers of the boxes that touch an area, ascending."""
        return _touching(self._boxes, area)

    def segments_in(self, area: QRectF) -> np.ndarray:
        """Return the numbers of the edge segments whose bounds touch an area, ascending."""
        return _touching(self._segments, area)

    def box_at(self, point: QPointF) -> int | None:
        """Return the box under a point."""
        boxes = self.boxes_in(QRectF(point.x(), point.y(), 1e-6, 1e-6))
        return int(boxes[-1]) if len(boxes) else None

    def neighbours(self, box: int, side: int) -> list[int]:
        """Return the boxes of the same rank as a box.

        Args:
            box: A box.
            side: -1 for those before it across the drawing, 1 for those after it.
        """
        here, rank = self.rectangles[box].center(), self.bounds
        if self.scene.upright:
            rank.setTop(here.y())
            rank.setHeight(1e-6)
        else:
            rank.setLeft(here.x())
            rank.setWidth(1e-6)

        def across(other: int) -> float:
            offset = self.rectangles[other].center() - here
            return offset.x() + offset.y()

        return [other for other in self.boxes_in(rank).tolist() if across(other) * side > 1]

    def jump_at(self, point: QPointF) -> tuple[list[int], bool] | None:
        """Return the boxes that the jump stub under a point leads to, or comes from.

        Returns:
            Their numbers, and whether the stub leads to them; None where there is no stub.
        """
        for box in self.boxes_in(QRectF(point.x() - 34, point.y(), 34, 1e-6)).tolist():
            rectangle = self.rectangles[box]
            if rectangle.right() + 2 <= point.x() <= rectangle.right() + 32:
                low = point.y() > rectangle.center().y()
                others = (self.scene.jumps_out if low else self.scene.jumps_in).get(box)
                if others:
                    return others, low
        return None


def _touching(spans: np.ndarray, area: QRectF) -> np.ndarray:
    """Return the places of the rectangles that touch an area, ascending.

    Args:
        spans: Left, top, right and bottom of each, as a row.
        area: The area.
    """
    near = (spans[:, :2] <= (area.right(), area.bottom())).all(axis=1)
    return np.flatnonzero(near & (spans[:, 2:] >= (area.left(), area.top())).all(axis=1))


def _solid_part(boxes: list[QRectF], sideways: bool) -> QRectF:
    """Return the longest straight run of a partition's boxes, on which a label can lie."""

    def along(box: QRectF) -> float:
        return box.left() if sideways else box.top()

    lines: dict[int, list[QRectF]] = {}
    for box in boxes:
        lines.setdefault(round(box.top() if sideways else box.left()), []).append(box)
    best = QRectF()
    for line in lines.values():
        run = QRectF()
        last = None
        for box in sorted(line, key=along):
            step = BOX_WIDTH if sideways else BOX_HEIGHT
            near = last is not None and along(box) - along(last) < 1.8 * step
            run = run.united(box) if near else QRectF(box)
            last = box
            if run.width() * run.height() > best.width() * best.height():
                best = QRectF(run)
    return best
