"""The one painter: a pure function of picture, marks, area, scale and theme.

Screen, minimap, PNG export and the picture kept during gestures all come from ``paint``. Levels
of detail by the height of a box on the screen:

- far (< 9 px): boxes are filled rectangles by colour, edges thin straight lines, partitions
  carry their tag and share where there is room;
- middle (< 30 px): boxes with strip and operator;
- near: tag, operator, shape, cost, share, jump stubs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QBrush, QColor, QFont, QFontMetricsF, QPainter, QPen

from collage_engine.drawing.layout import BOX_HEIGHT
from collage_engine.drawing.looks import BoxLook
from collage_engine.drawing.palette import mix, toolchain_look
from collage_gui.graph_view.picture import Marks, Picture
from collage_gui.theme import Colours

STRIP = 28.0
FAR_PX, NEAR_PX = 9.0, 30.0

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
class Style:
    """What the painter needs of the theme."""

    colours: Colours
    font: QFont
    bold: QFont

    def sized(self, size: float, bold: bool = False) -> QFont:
        font = QFont(self.bold if bold else self.font)
        font.setPixelSize(max(1, round(size)))
        return font


def paint(
    painter: QPainter,
    picture: Picture,
    marks: Marks,
    area: QRectF,
    scale: float,
    style: Style,
    labels: bool = True,
) -> None:
    """Paint ``area`` of the scene; the painter is already scaled and moved to scene units."""
    c = style.colours
    painter.fillRect(area, QColor(c.canvas))
    height = BOX_HEIGHT * scale
    far = height < FAR_PX
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, not far)
    _bands(painter, picture, area, scale, c, far)
    _edges(painter, picture, area, scale, c, far)
    visible = picture.boxes_in(area)
    if far:
        _far(painter, picture, marks, visible, c)
        if labels:
            _partition_labels(painter, picture, area, scale, style)
    else:
        near = height >= NEAR_PX
        for box in visible.tolist():
            _box(painter, picture, marks, box, scale, style, near)
        if near:
            _jumps(painter, picture, visible, style)
    _marked(painter, picture, marks, area, scale, c)


def _bands(painter, picture, area, scale, c, far) -> None:
    strength = 0.42 if far else 0.78
    if c.dark:
        strength = 0.5 if far else 0.72
    for colour, rims, fills, lines in picture.bands(area):
        rim = QColor(mix(colour, c.canvas, 0.25 if c.dark else 0.3))
        fill = QColor(mix(colour, c.canvas, strength))
        for tint, rectangles, width in ((rim, rims, 15.0), (fill, fills, 12.0)):
            if lines:
                pen = QPen(tint, width)
                pen.setCapStyle(Qt.PenCapStyle.FlatCap)
                pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
                painter.setPen(pen)
                painter.drawLines(lines)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(tint)
            if far or scale < 0.5:
                painter.drawRects(rectangles)
            else:
                for rectangle in rectangles:
                    painter.drawRoundedRect(rectangle, 7, 7)


def _edges(painter, picture, area, scale, c, far) -> None:
    found = picture.segments_in(area)
    if not len(found):
        return
    pen = QPen(QColor(c.edge), 1.0 if far else max(1.2, 1.0 / scale))
    pen.setCosmetic(far)
    painter.setPen(pen)
    lines = picture.lines
    painter.drawLines([lines[i] for i in found.tolist()])


def _far(painter, picture, marks, visible, c) -> None:
    painter.setPen(Qt.PenStyle.NoPen)
    colours = picture.colour_of[visible]
    rectangles = picture.rectangles
    for number in np.unique(colours).tolist():
        colour = picture.colours[number]
        if marks.stale:
            colour = QColor(mix(colour.name(), c.canvas, 0.4))
        painter.setBrush(colour)
        painter.drawRects([rectangles[i] for i in visible[colours == number].tolist()])


def _partition_labels(painter, picture, area, scale, style) -> None:
    """Far away, a partition that is large enough on the screen says what it is."""
    size = 11.0 / scale
    font = style.sized(size, bold=True)
    metrics = QFontMetricsF(font)
    painter.setFont(font)
    for around, outline, _ in picture.partition_boxes:
        if not around.intersects(area):
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
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(look.colour))
        painter.drawRect(label)
        tied = picture.looks[outline.boxes[0]].tied
        if tied:
            # The letters keep to the plain colour; the hatch lies under them as a bar.
            bar = QRectF(around.left(), label.bottom(), around.width(), 6 / scale)
            bar.moveBottom(min(bar.bottom(), around.bottom()))
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(look.colour))
            painter.drawRect(bar)
            hatch(painter, bar, tied, 6 / scale)
            label.moveBottom(bar.top())
        painter.setPen(QColor(look.text))
        painter.drawText(label, Qt.AlignmentFlag.AlignCenter, text)


def hatch(painter: QPainter, area: QRectF, colour: str, step: float = 10.0) -> None:
    """Stripes of ``colour`` over half of ``area``: what is below is the other half."""
    painter.save()
    painter.setClipRect(area, Qt.ClipOperation.IntersectClip)
    painter.setPen(QPen(QColor(colour), step / 2, Qt.PenStyle.SolidLine, Qt.PenCapStyle.FlatCap))
    # The stripes lean by 45°: across they are √2 apart of what they are along the edge.
    apart = step * 2**0.5
    at = area.left() - area.height()
    while at < area.right() + apart:
        painter.drawLine(QPointF(at, area.bottom()), QPointF(at + area.height(), area.top()))
        at += apart
    painter.restore()


def _box(painter, picture, marks, box, scale, style, near) -> None:
    c = style.colours
    look: BoxLook = picture.looks[box]
    r: QRectF = picture.rectangles[box]
    faded = marks.stale or (box in marks.dimmed)
    if faded:
        painter.setOpacity(0.45 if box in marks.dimmed else 0.7)
    painter.setBrush(QColor(look.colour if look.filled else c.raised))
    pen = QPen(QColor(c.border), 1.0 / max(scale, 0.6))
    if look.dashed:
        pen.setStyle(Qt.PenStyle.CustomDashLine)
        pen.setDashPattern([4, 3])
        pen.setColor(QColor(c.quiet))
    painter.setPen(pen)
    text = QColor(look.text if look.filled else c.text)
    quiet = QColor(look.text if look.filled else c.quiet)
    if look.kind in ("input", "output"):
        r = r.adjusted(20, 7, -20, -7)
        painter.drawRoundedRect(r, r.height() / 2, r.height() / 2)
        painter.setPen(text)
        painter.setFont(style.sized(12, bold=True))
        name = painter.fontMetrics().elidedText(
            look.title, Qt.TextElideMode.ElideMiddle, int(r.width() - 20)
        )
        painter.drawText(r, Qt.AlignmentFlag.AlignCenter, name)
        painter.setOpacity(1.0)
        return
    if look.kind == "group":
        # A second sheet behind says that there is more inside.
        painter.drawRoundedRect(r.translated(4, 4), 5, 5)
    painter.drawRoundedRect(r, 5, 5)
    left = r.left() + 10
    if not look.filled:
        strip = QRectF(r.left() + 0.5, r.top() + 0.5, STRIP, r.height() - 1)
        painter.setPen(Qt.PenStyle.NoPen)
        if look.mixed:
            top = strip.top()
            for colour, share in look.mixed:
                painter.setBrush(QColor(colour))
                painter.drawRect(QRectF(strip.left(), top, STRIP, strip.height() * share))
                top += strip.height() * share
        else:
            painter.setBrush(QColor(look.colour))
            painter.drawRoundedRect(strip, 4, 4)
            painter.drawRect(strip.adjusted(6, 0, 0, 0))
            if look.tied:
                hatch(painter, strip.adjusted(1, 1, 0, -1), look.tied)
            elif look.pattern != "solid" and near:
                ink = QColor(look.text)
                ink.setAlphaF(0.3)
                painter.setBrush(QBrush(ink, BRUSHES[look.pattern]))
                painter.drawRect(strip.adjusted(2, 1, 0, -1))
        if look.tag and not look.mixed:
            if look.tied or (look.pattern != "solid" and near):
                # The tag stands on plain colour, so that the pattern never disturbs it.
                painter.setBrush(QColor(look.colour))
                painter.drawRect(QRectF(strip.left() + 2, strip.center().y() - 9, STRIP - 2, 18))
            painter.setFont(style.sized(12 if near else min(17, 10 / scale), bold=True))
            painter.setPen(QColor(look.text))
            painter.drawText(strip, Qt.AlignmentFlag.AlignCenter, look.tag)
        left += STRIP
    mark = marks.pinned.get(box)
    right = r.right() - 8
    if mark:
        _badge(painter, mark, r, scale, style)
    if not near:
        painter.setPen(text)
        size = min(25.0, max(17.0, 11 / scale))
        painter.setFont(style.sized(size, bold=True))
        title = look.value if look.kind == "group" and look.value else look.title
        inside = QRectF(left, r.top(), right - left, r.height())
        name = painter.fontMetrics().elidedText(
            title, Qt.TextElideMode.ElideRight, int(inside.width())
        )
        painter.drawText(inside, Qt.AlignmentFlag.AlignVCenter, name)
        _share(painter, look, r, left, c)
        painter.setOpacity(1.0)
        return
    first = QRectF(left, r.top() + 5, right - left, 18)
    if look.value:
        painter.setFont(style.sized(11))
        painter.setPen(quiet)
        painter.drawText(
            first, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, look.value
        )
        first.setRight(first.right() - painter.fontMetrics().horizontalAdvance(look.value) - 6)
    painter.setFont(style.sized(13, bold=True))
    painter.setPen(text)
    name = painter.fontMetrics().elidedText(
        look.title, Qt.TextElideMode.ElideRight, int(first.width())
    )
    painter.drawText(first, Qt.AlignmentFlag.AlignVCenter, name)
    painter.setFont(style.sized(11))
    painter.setPen(quiet)
    second = QRectF(left, r.top() + 23, r.right() - 8 - left, 17)
    detail = look.detail
    if scale > 1.5 and picture.scene.display.boxes[box].kind == "operator":
        detail = picture.scene.display.boxes[box].label
    detail = painter.fontMetrics().elidedText(
        detail, Qt.TextElideMode.ElideMiddle, int(second.width())
    )
    painter.drawText(second, Qt.AlignmentFlag.AlignVCenter, detail)
    _share(painter, look, r, left, c)
    painter.setOpacity(1.0)


def _badge(painter, mark, r, scale, style) -> None:
    """A pin's mark on the box's corner, never smaller than can be seen."""
    c = style.colours
    size = min(34.0, max(18.0, 15 / scale))
    badge = QRectF(r.right() - size * 0.6, r.top() - size * 0.42, size, size)
    painter.setPen(QPen(QColor(c.canvas), size / 12))
    painter.setBrush(QColor(c.text))
    painter.drawEllipse(badge)
    painter.setPen(QColor(c.canvas))
    painter.setFont(style.sized(size * 0.58, bold=True))
    painter.drawText(badge, Qt.AlignmentFlag.AlignCenter, mark)


def _share(painter, look, r, left, c) -> None:
    """A group's share of the model's latency as a bar along its foot."""
    if look.share is None:
        return
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(c.line))
    bar = QRectF(left, r.bottom() - 6, r.right() - 8 - left, 3)
    painter.drawRect(bar)
    painter.setBrush(QColor(look.colour))
    bar.setWidth(max(1.0, bar.width() * look.share))
    painter.drawRect(bar)


def _jumps(painter, picture, visible, style) -> None:
    c = style.colours
    painter.setFont(style.sized(10))
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


def _marked(painter, picture, marks, area, scale, c) -> None:
    """Selection, candidate and search results, as rings of constant width on the screen."""
    painter.setBrush(Qt.BrushStyle.NoBrush)
    width = 2.5 / scale
    grow = min(14.0, 4.0 / scale) if scale < 1 else 3.0
    for boxes, colour, line in (
        (marks.found, c.quiet, Qt.PenStyle.DotLine),
        (marks.candidate, c.accent, Qt.PenStyle.DashLine),
        (marks.selected, c.accent, Qt.PenStyle.SolidLine),
    ):
        if not boxes:
            continue
        pen = QPen(QColor(colour), width)
        pen.setStyle(line)
        painter.setPen(pen)
        inside = [
            picture.rectangles[box]
            for box in boxes
            if box < len(picture.rectangles) and picture.rectangles[box].intersects(area)
        ]
        for r in inside if len(inside) < 3000 else ():
            painter.drawRoundedRect(r.adjusted(-grow, -grow, grow, grow), 6, 6)
        if len(inside) >= 3000:
            painter.drawRects(inside)
    if marks.primary is not None and len(marks.selected) > 1:
        r = picture.rectangles[marks.primary]
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(c.accent))
        size = 5 / scale
        painter.drawEllipse(QPointF(r.left(), r.top()), size, size)
