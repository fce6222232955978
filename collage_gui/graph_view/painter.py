"""Paints the graph as a pure function of picture, marks, area, scale and theme.

Screen, minimap and PNG export all come from ``Painting``. Levels
of detail by the height of a box on the screen:

- far (no higher than a legible letter): boxes are filled rectangles by colour, edges thin straight
  lines, partitions carry their tag and share where there is room;
- middle: boxes with strip and operator;
- near (from ``LEGIBLE_SCALE`` on): tag, operator, shape, cost, share, jump stubs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFont,
    QFontMetricsF,
    QGuiApplication,
    QIcon,
    QPainter,
    QPainterPath,
    QPen,
    QPixmap,
)

from collage_engine.drawing.box_styles import BoxStyle
from collage_engine.drawing.layout import BOX_HEIGHT, LEGIBLE_PX, LEGIBLE_SCALE, STEP, STRIP
from collage_engine.drawing.palette import Colours, Look, mix, toolchain_look
from collage_engine.drawing.scene import skip_curve
from collage_engine.wording.amounts import DASH
from collage_gui.graph_view.picture import Crossing, Marks, Picture
from collage_gui.preferences import STEP as TEXT_STEP

MOST_OF_TWO_LINES, SHARE_BAR = 16.0, 6.0
"""Largest text of a box with two lines, and the height that its bar of the share takes, in scene
units; both lines fit beside the bar."""
DIMMED = 0.38
"""Share of its colour that a dimmed box keeps: that of disabled things in Material Design
(m3.material.io, "Interaction states")."""
RING_PX = 2.0
"""Width of a ring, and of the light rim on both sides of it, in pixels: those of an indicator of
two colours in technique C40 of WCAG 2.2."""

CHIP = QSize(28, 16)
"""Size of the picture of a colour, in pixels."""
BRUSHES = {
    "solid": Qt.BrushStyle.NoBrush,
    "rising": Qt.BrushStyle.BDiagPattern,
    "falling": Qt.BrushStyle.FDiagPattern,
    "level": Qt.BrushStyle.HorPattern,
    "upright": Qt.BrushStyle.VerPattern,
    "grid": Qt.BrushStyle.CrossPattern,
    "cross": Qt.BrushStyle.DiagCrossPattern,
    "dots": Qt.BrushStyle.Dense6Pattern,
    "dense": Qt.BrushStyle.Dense4Pattern,
    "sparse": Qt.BrushStyle.Dense7Pattern,
}


@dataclass(frozen=True)
class PaintTheme:
    """The colours and fonts that the painter takes from the theme."""

    colours: Colours
    font: QFont
    bold: QFont

    def sized(self, size: float, bold: bool = False) -> QFont:
        """Return the font at another size, in scene units or pixels."""
        font = QFont(self.bold if bold else self.font)
        font.setPixelSize(max(1, round(size)))
        return font


@dataclass(frozen=True)
class Painting:
    """Paints an area of the scene."""

    painter: QPainter
    """Scaled and moved to scene units."""
    picture: Picture
    marks: Marks
    """What is painted over the picture."""
    area: QRectF
    """The part of the scene that is needed."""
    scale: float
    """Pixels of one scene unit."""
    theme: PaintTheme

    @property
    def colours(self) -> Colours:
        """Return the colours of the theme."""
        return self.theme.colours

    @property
    def far(self) -> bool:
        """Tell whether boxes are spots of colour."""
        return BOX_HEIGHT * self.scale < LEGIBLE_PX

    @property
    def near(self) -> bool:
        """Tell whether all texts of boxes can be read."""
        return self.scale >= LEGIBLE_SCALE

    @property
    def touching(self) -> list[Crossing]:
        """Return the transitions that cross the area."""
        return [each for each in self.picture.crossings if each.bounds.intersects(self.area)]

    def _fill(self, colour: QColor | str) -> None:
        """Fill with a colour, without a line around, from now on."""
        self.painter.setPen(Qt.PenStyle.NoPen)
        self.painter.setBrush(QColor(colour))

    def paint(self, labels: bool = True) -> None:
        """Paint the area.

        Args:
            labels: Whether partitions carry labels when boxes are small.
        """
        painter, marks = self.painter, self.marks
        painter.fillRect(self.area, QColor(self.colours.canvas))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, not self.far)
        self._bands()
        self._edges()
        self._skips()
        self._crossings()
        visible = self.picture.boxes_in(self.area)
        if self.far:
            self._far(visible)
            if labels and not self.picture.is_scale:
                self._partition_labels()
        for box in visible.tolist() if not self.far else ():
            self._box(box)
        if self.near:
            self._jumps(visible)
            self._crossing_labels()
        self._rings()
        if not self.far:
            self._heads()
        for box in visible.tolist() if not self.far else ():
            if mark := marks.pinned.get(box):
                self._badge(mark, self.picture.rectangles[box])

    def _bands(self) -> None:
        """Paint the tints of the partitions, below everything else."""
        painter, c, far = self.painter, self.colours, self.far
        strength = 0.42 if far else 0.78
        if c.dark:
            strength = 0.5 if far else 0.72
        for colour, rims, fills in self.picture.bands(self.area):
            rim = QColor(mix(colour, c.canvas, 0.25 if c.dark else 0.3))
            fill = QColor(mix(colour, c.canvas, strength))
            for tint, rectangles in ((rim, rims), (fill, fills)):
                self._fill(tint)
                if far or self.scale < 0.5:
                    painter.drawRects(rectangles)
                else:
                    for rectangle in rectangles:
                        painter.drawRoundedRect(rectangle, 7, 7)

    def _edges(self) -> None:
        painter, far, lines = self.painter, self.far, self.picture.lines
        visible = self.picture.segments_in(self.area)
        if not len(visible):
            return
        pen = QPen(QColor(self.colours.edge), 1.0 if far else max(1.2, 1.0 / self.scale))
        pen.setCosmetic(far)
        painter.setPen(pen)
        painter.drawLines([lines[i] for i in visible.tolist()])

    def _skips(self) -> None:
        """Paint the edges that the layout cuts as faint curves; those of chosen boxes stand out."""
        painter, picture, marks, c = self.painter, self.picture, self.marks, self.colours
        wanted = {*marks.selected, marks.primary} - {None}
        always = picture.scene.curves
        if not picture.skips or not (always or wanted):
            return
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for a, b in picture.skips:
            chosen = a in wanted or b in wanted
            if not (chosen or (a, b) in always):
                continue
            start, one, two, end = (QPointF(*p) for p in skip_curve(picture.scene, a, b))
            path = QPainterPath(start)
            path.cubicTo(one, two, end)
            if not path.controlPointRect().intersects(self.area):
                continue
            colour = QColor(c.text if chosen else c.edge)
            colour.setAlphaF(1.0 if chosen else 0.55)
            painter.setPen(QPen(colour, (1.8 if chosen else 1.1) / min(self.scale, 1.0)))
            painter.drawPath(path)
        painter.restore()

    def _crossings(self) -> None:
        """Paint transitions between toolchains, formats or devices as heavy arrows."""
        pen = QPen(QColor(self.colours.text), 1.6 if self.far else 2.2)
        pen.setCosmetic(self.far)
        self.painter.setPen(pen)
        self.painter.drawLines([line for border in self.touching for line in border.lines])

    def _heads(self) -> None:
        """Paint the heads of these arrows, above the ring of the box that they point at."""
        self._fill(self.colours.text)
        for crossing in self.touching:
            self.painter.drawPolygon(crossing.head)

    def _crossing_labels(self) -> None:
        """Paints the bytes, conversion and cost of each transition beside its arrow."""
        painter, c = self.painter, self.colours
        painter.setFont(self.theme.sized(10))
        metrics = painter.fontMetrics()
        for crossing in self.touching:
            text = crossing.transition.label
            width, height = metrics.horizontalAdvance(text) + 6, metrics.height()
            left = crossing.label_at.x() - (width if crossing.on_the_left else 0)
            area = QRectF(left, crossing.label_at.y() - height / 2, width, height)
            background = QColor(c.canvas)
            background.setAlpha(225)
            self._fill(background)
            painter.drawRoundedRect(area, 3, 3)
            painter.setPen(QColor(c.text))
            painter.drawText(area, Qt.AlignmentFlag.AlignCenter, text)

    def _far(self, visible: np.ndarray) -> None:
        """Paints boxes as filled rectangles, all of one colour at a time."""
        painter, picture, marks, c = self.painter, self.picture, self.marks, self.colours
        painter.setPen(Qt.PenStyle.NoPen)
        if picture.is_scale:
            pen = QPen(QColor(c.border), 1)
            pen.setCosmetic(True)
            painter.setPen(pen)  # the lowest colour of a scale is close to that of the canvas
        colours = picture.colour_of[visible]
        rectangles = picture.rectangles
        for number in np.unique(colours).tolist():
            colour = picture.colours[number]
            if marks.stale:
                colour = QColor(mix(colour.name(), c.canvas, 0.4))
            boxes = visible[colours == number].tolist()
            faint = [i for i in boxes if i in marks.dimmed] if marks.dimmed else []
            painter.setBrush(colour)
            painter.drawRects([rectangles[i] for i in boxes if i not in marks.dimmed])
            if faint:
                painter.setBrush(QColor(mix(colour.name(), c.canvas, 1 - DIMMED)))
                painter.drawRects([rectangles[i] for i in faint])

    def _partition_labels(self) -> None:
        """Paints tag and share of the partitions that are large on the screen and not dimmed."""
        painter, picture, scale = self.painter, self.picture, self.scale
        size = 11.0 / scale
        font = self.theme.sized(size, bold=True)
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        for around, outline in picture.partition_boxes:
            if not around.intersects(self.area) or self.marks.dimmed.issuperset(outline.boxes):
                continue
            look = toolchain_look(outline.toolchain)
            share = picture.shares.get(outline.partition, 0.0)
            height = metrics.height() + 2 / scale
            for text in (f"{look.tag} {share:.0%}", look.tag) if share >= 0.005 else (look.tag,):
                width = metrics.horizontalAdvance(text) + 8 / scale
                if around.width() >= width and around.height() >= height:
                    break
            else:
                continue
            label = QRectF(0, 0, width, height)
            label.moveCenter(around.center())
            self._fill(look.colour)
            painter.drawRect(label)
            painter.setPen(QColor(look.text))
            painter.drawText(label, Qt.AlignmentFlag.AlignCenter, text)

    def _box(self, box: int) -> None:
        """Paint one box with its strip, texts, badge and share."""
        style, area = self.picture.styles[box], self.picture.rectangles[box]
        self.painter.setOpacity(self._opacity(box))
        self._set_outline(style)
        if style.kind in ("input", "output"):
            self._border_item(style, area.adjusted(20, 7, -20, -7))
        else:
            self._item(box, style, area)
        self.painter.setOpacity(1.0)

    def _opacity(self, box: int) -> float:
        if box in self.marks.dimmed:
            return DIMMED
        return 0.7 if self.marks.stale else 1.0

    def _set_outline(self, style: BoxStyle) -> None:
        pen = QPen(QColor(self.colours.border), 1.0 / max(self.scale, 0.6))
        if style.dashed:
            pen.setStyle(Qt.PenStyle.CustomDashLine)
            pen.setDashPattern([4, 3])
            pen.setColor(QColor(self.colours.quiet))
        self.painter.setPen(pen)
        self.painter.setBrush(QColor(style.colour if style.filled else self.colours.raised))

    def _text_colour(self, style: BoxStyle) -> QColor:
        return QColor(style.text if style.filled else self.colours.text)

    def _border_item(self, style: BoxStyle, area: QRectF) -> None:
        """Paint an input or an output of the graph."""
        painter = self.painter
        painter.drawRoundedRect(area, area.height() / 2, area.height() / 2)
        painter.setPen(self._text_colour(style))
        painter.setFont(self.theme.sized(12, bold=True))
        name = self._elided(style.title, area.width() - 20, Qt.TextElideMode.ElideMiddle)
        painter.drawText(area, Qt.AlignmentFlag.AlignCenter, name)

    def _item(self, box: int, style: BoxStyle, area: QRectF) -> None:
        painter = self.painter
        if style.kind == "group":
            # A second sheet behind says that there is more inside.
            painter.drawRoundedRect(area.translated(4, 4), 5, 5)
        painter.drawRoundedRect(area, 5, 5)
        texts = area.adjusted(10, 0, -8, 0)
        if not style.filled:
            self._strip(style, area)
            texts.setLeft(texts.left() + STRIP)
        if self.near:
            self._near_texts(box, style, texts)
        else:
            self._middle_text(style, texts)
        self._share(style, texts)

    def _strip(self, style: BoxStyle, area: QRectF) -> None:
        """Paint the coloured strip at the left edge, with its pattern and its tag."""
        painter = self.painter
        strip = QRectF(area.left() + 0.5, area.top() + 0.5, STRIP, area.height() - 1)
        painter.setPen(Qt.PenStyle.NoPen)
        if style.mixed:
            top = strip.top()
            for colour, share in style.mixed:
                painter.setBrush(QColor(colour))
                painter.drawRect(QRectF(strip.left(), top, STRIP, strip.height() * share))
                top += strip.height() * share
            return
        painter.setBrush(QColor(style.colour))
        painter.drawRoundedRect(strip, 4, 4)
        painter.drawRect(strip.adjusted(6, 0, 0, 0))
        patterned = style.pattern != "solid" and self.near
        if patterned:
            painter.setBrush(_pattern(style))
            painter.drawRect(strip.adjusted(2, 1, 0, -1))
        if style.tag:
            self._tag(style, strip, on_plain=patterned)

    def _tag(self, style: BoxStyle, strip: QRectF, on_plain: bool) -> None:
        """Paints the letters of the tag, on plain colour where a pattern would disturb them."""
        painter = self.painter
        if on_plain:
            painter.setBrush(QColor(style.colour))
            painter.drawRect(QRectF(strip.left() + 2, strip.center().y() - 9, STRIP - 2, 18))
        painter.setFont(self.theme.sized(12 if self.near else min(17, 10 / self.scale), bold=True))
        painter.setPen(QColor(style.text))
        painter.drawText(strip, Qt.AlignmentFlag.AlignCenter, style.tag)

    def _middle_text(self, style: BoxStyle, area: QRectF) -> None:
        """Paints what there is room for, as large as possible; a little smaller if it then fits."""
        self.painter.setPen(self._text_colour(style))
        size = min(25.0, max(17.0, 11 / self.scale))
        lines = middle_lines(style, self.picture.shows_partitions)
        if len(lines) > 1:
            size = min(size, MOST_OF_TWO_LINES)
            area = area.adjusted(0, 0, 0, -SHARE_BAR)
        height = area.height() / len(lines)
        for number, line in enumerate(lines):
            self.painter.setFont(self.theme.sized(size, bold=not number))
            wide = self.painter.fontMetrics().horizontalAdvance(line)
            if area.width() < wide <= area.width() * TEXT_STEP:
                self.painter.setFont(self.theme.sized(int(size * area.width() / wide), bold=True))
            line_area = QRectF(area.left(), area.top() + number * height, area.width(), height)
            text = self._elided(line, area.width())
            self.painter.drawText(line_area, Qt.AlignmentFlag.AlignVCenter, text)

    def _near_texts(self, box: int, style: BoxStyle, area: QRectF) -> None:
        """Paints operator and cost in the first line, shape or name in the second."""
        painter = self.painter
        quiet = QColor(style.text if style.filled else self.colours.quiet)
        first = QRectF(area.left(), area.top() + 5, area.width(), 18)
        if style.value:
            painter.setFont(self.theme.sized(11))
            painter.setPen(quiet)
            right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(first, right, style.value)
            used = painter.fontMetrics().horizontalAdvance(style.value) + 6
            first.setRight(first.right() - used)
        painter.setFont(self.theme.sized(13, bold=True))
        painter.setPen(self._text_colour(style))
        name = self._elided(style.title, first.width())
        painter.drawText(first, Qt.AlignmentFlag.AlignVCenter, name)
        first.setLeft(first.left() + painter.fontMetrics().horizontalAdvance(name) + STEP)
        painter.setFont(self.theme.sized(11))
        painter.setPen(quiet)
        if style.name and first.width() > STRIP:  # as many letters as a tag has are told
            name = self._elided(style.name, first.width(), Qt.TextElideMode.ElideMiddle)
            painter.drawText(first, Qt.AlignmentFlag.AlignVCenter, name)
        second = QRectF(area.left(), area.top() + 23, area.width(), 17)
        item = self.picture.scene.display.boxes[box]
        enlarged = self.scale > 1.5 and item.kind != "group"
        detail = item.label if enlarged else style.detail
        detail = self._elided(detail, second.width(), Qt.TextElideMode.ElideMiddle)
        painter.drawText(second, Qt.AlignmentFlag.AlignVCenter, detail)

    def _elided(
        self, text: str, width: float, where: Qt.TextElideMode = Qt.TextElideMode.ElideRight
    ) -> str:
        return self.painter.fontMetrics().elidedText(text, where, int(width))

    def _badge(self, mark: str, r: QRectF) -> None:
        """Paints a pin's mark on the box's corner, never smaller than can be seen."""
        painter, c = self.painter, self.colours
        size = min(34.0, max(18.0, 15 / self.scale))
        badge = QRectF(r.right() - size * 0.6, r.top() - size * 0.42, size, size)
        painter.setPen(QPen(QColor(c.canvas), size / 12))
        painter.setBrush(QColor(c.text))
        painter.drawEllipse(badge)
        painter.setPen(QColor(c.canvas))
        painter.setFont(self.theme.sized(size * 0.58, bold=True))
        painter.drawText(badge, Qt.AlignmentFlag.AlignCenter, mark)

    def _share(self, style: BoxStyle, area: QRectF) -> None:
        """Paint the expected cost beside the dearest partition's, as a thin bar at the edge."""
        painter = self.painter
        if style.share is None:
            return
        self._fill(self.colours.line)
        bar = QRectF(area.left(), area.bottom() - 6, area.width(), 3)
        painter.drawRect(bar)
        painter.setBrush(QColor(style.colour))
        bar.setWidth(max(1.0, bar.width() * style.share))
        painter.drawRect(bar)

    def _jumps(self, visible: np.ndarray) -> None:
        """Paints the stubs of cut edges, with how many there are."""
        painter, picture, c = self.painter, self.picture, self.colours
        painter.setFont(self.theme.sized(10))
        for box in visible.tolist():
            r = picture.rectangles[box]
            for side, low in ((picture.scene.jumps_out, True), (picture.scene.jumps_in, False)):
                others = side.get(box)
                if not others:
                    continue
                chip = QRectF(r.right() + 3, r.bottom() - 16 if low else r.top() + 1, 28, 15)
                painter.setPen(QPen(QColor(c.edge), 1))
                painter.setBrush(QColor(c.canvas))
                painter.drawRoundedRect(chip, 7, 7)
                painter.setPen(QColor(c.quiet))
                text = f"↦{len(others)}" if low else f"{len(others)}⇥"
                painter.drawText(chip, Qt.AlignmentFlag.AlignCenter, text)

    def _rings(self) -> None:
        """Paints rings of constant width: what is measured now, highlights, the selection."""
        painter, picture, marks, c = self.painter, self.picture, self.marks, self.colours
        painter.setBrush(Qt.BrushStyle.NoBrush)
        width = RING_PX / self.scale
        grow = min(14.0, 4.0 / self.scale) if self.scale < 1 else 3.0
        for boxes, colour, line in (
            (marks.measured_now, c.text, Qt.PenStyle.DashDotLine),
            (marks.highlighted, c.quiet, Qt.PenStyle.DotLine),
            (marks.candidate, c.focus, Qt.PenStyle.DashLine),
            (marks.selected, c.focus, Qt.PenStyle.SolidLine),
        ):
            inside = [
                picture.rectangles[box]
                for box in boxes
                if box < len(picture.rectangles) and picture.rectangles[box].intersects(self.area)
            ]
            is_chosen = boxes is marks.selected or boxes is marks.candidate
            pens = [QPen(QColor(colour), width if is_chosen else 0.6 * width)]
            pens[0].setStyle(line)
            if is_chosen:
                # A rim of the canvas's colour sets the ring off from boxes of a like colour.
                pens.insert(0, QPen(QColor(c.canvas), 3 * width))
            for pen in pens:
                painter.setPen(pen)
                for r in inside:
                    ring = r.adjusted(-grow, -grow, grow, grow)
                    painter.drawRect(ring) if self.far else painter.drawRoundedRect(ring, 6, 6)
        if marks.primary is not None and len(marks.selected) > 1:
            r = picture.rectangles[marks.primary]
            self._fill(c.focus)
            size = 5 / self.scale
            painter.drawEllipse(QPointF(r.left(), r.top()), size, size)


def small_picture(draw: Callable[[QPainter, QRectF], None]) -> QIcon:
    """Return a picture of the size of ``CHIP``, for a row of a list.

    Args:
        draw: Draws into an area, with antialiasing.
    """
    pixmap = QPixmap(CHIP * 2)
    pixmap.setDevicePixelRatio(2)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    draw(painter, QRectF(0.5, 0.5, CHIP.width() - 1, CHIP.height() - 1))
    painter.end()
    return QIcon(pixmap)


def _pattern(look: Look) -> QBrush:
    """Return a brush of the pattern that lies over a colour."""
    ink = QColor(look.text)
    ink.setAlphaF(0.3)
    return QBrush(ink, BRUSHES[look.pattern])


def chip(look: Look, edge: str) -> QIcon:
    """Return a colour with its pattern and letters as a small picture.

    Args:
        look: What is drawn.
        edge: Colour of the line around it.
    """

    def draw(painter: QPainter, area: QRectF) -> None:
        painter.setPen(QColor(edge))
        painter.setBrush(QColor(look.colour))
        painter.drawRoundedRect(area, 3, 3)
        painter.setPen(Qt.PenStyle.NoPen)
        if look.pattern != "solid":
            painter.setBrush(_pattern(look))
            painter.drawRoundedRect(area, 3, 3)
            # Letters stand on plain colour, where a pattern would disturb them.
            painter.setBrush(QColor(look.colour))
            painter.drawRect(area.adjusted(5, 2, -5, -2))
        font = QGuiApplication.font()
        font.setPixelSize(10)
        font.setWeight(QFont.Weight.DemiBold)
        painter.setFont(font)
        painter.setPen(QColor(look.text))
        painter.drawText(area, Qt.AlignmentFlag.AlignCenter, look.tag)

    return small_picture(draw)


def middle_lines(style: BoxStyle, by_cost: bool) -> list[str]:
    """Return the texts of a box where there is no room for all: its title, and its cost below.

    Args:
        style: The box.
        by_cost: Whether partitions are drawn as one box each.
    """
    with_cost = (style.kind == "group" or by_cost) and style.value not in ("", DASH)
    return [style.title, style.value] if with_cost else [style.title]
