"""Writes a scene as an SVG picture that is self-contained and keeps text as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape, quoteattr

from collage_engine.drawing.box_styles import BoxStyle, Colouring, LegendEntry, style_boxes
from collage_engine.drawing.layout import ACROSS_GAP, ARROW, STRIP
from collage_engine.drawing.palette import DARK, LIGHT, Colours, mix
from collage_engine.drawing.scene import (
    DrawnTransition,
    Outline,
    Scene,
    arrow_head,
    bridge,
    labels_on_the_left,
    outlines,
    placement_scene,
    skip_curve,
    transitions,
)
from collage_engine.records.graph import GraphRecord
from collage_engine.records.placement import Placement
from collage_engine.wording import amounts

TITLE_LETTER_PX = 8.2
"""Width of a letter of a box's title, in scene units: the mean over names of operators in DejaVu
Sans Bold, a wide font, since a report cannot know which one its reader has."""

_PATTERNS = {
    "rising": '<path d="M-1,7 l8,-8 M-1,1 l2,-2 M5,7 l2,-2"/>',
    "falling": '<path d="M-1,-1 l8,8 M5,-1 l2,2 M-1,5 l2,2"/>',
    "level": '<path d="M0,3 h6"/>',
    "upright": '<path d="M3,0 v6"/>',
    "grid": '<path d="M0,3 h6 M3,0 v6"/>',
    "cross": '<path d="M0,0 l6,6 M6,0 l-6,6"/>',
    "dots": '<circle cx="3" cy="3" r="1"/>',
    "dense": '<path d="M0,1.5 h6 M0,4.5 h6"/>',
    "sparse": '<path d="M0,1.5 h2 M3,4.5 h2"/>',
}


BOLD, MIDDLE, END = ' font-weight="600"', ' text-anchor="middle"', ' text-anchor="end"'
"""Attributes of texts."""


def rect(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    """Return a rectangle as an element, with further attributes."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}"{more}/>'


def text(x: float, y: float, size: float, fill: str, words: str, more: str = "") -> str:
    """Return a text as an element, with further attributes."""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}"'
    return f'<text {place} fill="{fill}"{more}>{escape(words)}</text>'


def picture(width: float, height: float, title: str, ink: Colours, parts: Iterable[str]) -> str:
    """Return a document of elements on the background of a theme.

    Args:
        width: Of the picture, in pixels.
        height: Of the picture, in pixels.
        title: What screen readers call it.
        ink: The theme.
        parts: The elements.
    """
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        f'font-family="Inter, system-ui, sans-serif" aria-label={quoteattr(title)}>'
    )
    back = f'<rect width="100%" height="100%" fill="{ink.canvas}"/>'
    return "\n".join([head, back, *parts, "</svg>"])


def _points(route: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in route)


def render(
    shown: Scene,
    styles: Sequence[BoxStyle],
    legend: Sequence[LegendEntry],
    parts: Sequence[Outline],
    title: str,
    dark: bool,
    crossing: Sequence[DrawnTransition],
) -> str:
    """Write a scene as one SVG document; every box carries a ``<title>`` with its full name.

    Args:
        shown: The boxes and edges.
        styles: How each box is drawn.
        legend: What the colours mean.
        parts: The partitions to tint.
        title: A heading.
        dark: Whether the background is dark.
        crossing: What passes between toolchains, formats or devices.
    """
    ink = DARK if dark else LIGHT
    head = 34.0 + (30.0 if legend else 0.0)
    width = max(shown.layout.width + 2 * ACROSS_GAP, 480.0)
    height = shown.layout.height + 2 * ACROSS_GAP + head
    # Names of patterns differ, since a page may hold both drawings and hide one of them.
    used = sorted({style.pattern for style in styles if style.pattern != "solid"})
    out = [
        "<defs>",
        *(
            f'<pattern id="{ink.name}-{name}" width="6" height="6" '
            f'patternUnits="userSpaceOnUse">'
            f'<g fill="none" stroke="#000" stroke-opacity="0.28" stroke-width="1">'
            f"{_PATTERNS[name]}</g></pattern>"
            for name in used
        ),
        "</defs>",
        text(ACROSS_GAP, 32, 15, ink.text, title, BOLD),
        *_legend(legend, ink),
        f'<g transform="translate({ACROSS_GAP} {ACROSS_GAP + head})">',
    ]
    for rim in (True, False):
        out.extend(_tint(shown, part, styles, ink, rim) for part in parts)
    out.append(f'<g fill="none" stroke="{ink.edge}" stroke-width="1.2">')
    lines = filter(None, shown.layout.routes)
    out.extend(f'<polyline points="{_points(route)}"/>' for route in lines)
    out.append("</g>")
    out.extend(_skips(shown, ink))
    drawn = [arrow for arrow in crossing if shown.layout.routes[arrow.edge]]
    out.extend(_crossing(shown, arrow, ink) for arrow in drawn)
    out.extend(_box(shown, box, style, ink) for box, style in enumerate(styles))
    left = labels_on_the_left(shown, drawn)
    out.extend(_crossing_label(shown, arrow, ink, arrow.edge in left) for arrow in drawn)
    out.extend(_jumps(shown, ink))
    return picture(width, height, title or "graph", ink, [*out, "</g>"])


def _legend(legend: Sequence[LegendEntry], ink: Colours) -> list[str]:
    out: list[str] = []
    x = ACROSS_GAP
    for entry in legend:
        label = f"{entry.label or 'not placed'}: {entry.detail or entry.count}"
        out.append(rect(x, 44, 28, 18, entry.colour, ' rx="3"'))
        out.append(text(x + 14, 57, 10, entry.text, entry.tag, BOLD + MIDDLE))
        out.append(text(x + 34, 57.5, 12, ink.quiet, label))
        x += 34 + len(label) * 6.8 + 22
    return out


def _tint(shown: Scene, part: Outline, styles: Sequence[BoxStyle], ink: Colours, rim: bool) -> str:
    """Return a partition's tint: its boxes grown a little, joined where they are neighbours."""
    fill = mix(styles[part.boxes[0]].colour, ink.canvas, 0.35 if rim else 0.78)
    grow = 9.0 if rim else 7.5
    side, top = (grow, 0.0) if shown.upright else (0.0, grow)
    boxes = [
        rect(x - grow, y - grow, w + 2 * grow, h + 2 * grow, fill, f' rx="{grow}"')
        for x, y, w, h in map(shown.rectangle, part.boxes)
    ]
    bridges = [
        rect(x - side, y - top, w + 2 * side, h + 2 * top, fill)
        for x, y, w, h in filter(None, (bridge(shown, edge) for edge in part.edges))
    ]
    name = quoteattr(part.partition)
    return f"<g data-partition={name}>{''.join((*boxes, *bridges))}</g>"


def _skips(shown: Scene, ink: Colours) -> list[str]:
    """Draws edges that the layout cuts as faint curves."""
    curves = []
    for a, b in shown.curves:
        start, one, two, end = (f"{x:.1f},{y:.1f}" for x, y in skip_curve(shown, a, b))
        curves.append(f'<path d="M{start} C{one} {two} {end}"/>')
    return [f'<g fill="none" stroke="{ink.edge}" stroke-width="1">{"".join(curves)}</g>']


def _crossing(shown: Scene, each: DrawnTransition, ink: Colours) -> str:
    """Draw a transition between toolchains, formats or devices: a heavy line with an arrow head."""
    route = shown.layout.routes[each.edge]
    line = f'points="{_points(route)}" fill="none" stroke="{ink.text}" stroke-width="2.2"'
    head = f'<polygon points="{_points(arrow_head(route, ARROW))}" fill="{ink.text}"/>'
    return f"<g><title>{escape(each.sentence)}</title><polyline {line}/>{head}</g>"


def _crossing_label(shown: Scene, each: DrawnTransition, ink: Colours, on_the_left: bool) -> str:
    """Return bytes, conversion and cost of a transition, beside its arrow."""
    x, y = shown.layout.routes[each.edge][-1]
    halo = f' stroke="{ink.canvas}" stroke-width="3" paint-order="stroke"'
    beside, anchor = (-12, END) if on_the_left else (12, "")
    return text(x + beside, y - 9, 10, ink.text, each.label, anchor + halo)


def _box(shown: Scene, box: int, style: BoxStyle, ink: Colours) -> str:
    x, y, w, h = shown.rectangle(box)
    item = shown.display.boxes[box]
    tips = (item.label, style.title, style.detail, style.value, style.note)
    dash = ' stroke-dasharray="4 3"' if style.dashed else ""
    fill = style.colour if style.filled else ink.raised
    title, quiet = (style.text,) * 2 if style.filled else (ink.text, ink.quiet)
    radius = 23 if style.kind in ("input", "output") else 5
    outline = f' rx="{radius}" stroke="{ink.border}"{dash}'
    out = [
        f"<g><title>{escape(' · '.join(filter(None, tips)))}</title>",
        rect(x, y, w, h, fill, outline),
    ]
    left = x + 14
    if item.is_work and not style.filled:
        shape = (
            f'd="M{x + 5:.1f},{y:.1f} h{STRIP - 5} v{h} h-{STRIP - 5} '
            f'a5,5 0 0 1 -5,-5 v-{h - 10} a5,5 0 0 1 5,-5 z"'
        )
        out.append(f'<path {shape} fill="{style.colour}"/>')
        if style.pattern != "solid":
            out.append(f'<path {shape} fill="url(#{ink.name}-{style.pattern})"/>')
        tag = BOLD + MIDDLE
        out.append(text(x + STRIP / 2, y + h / 2 + 4, 11, style.text, style.tag, tag))
        left = x + STRIP + 8
    value_px = 6.6 * len(style.value) + 8 if style.value else 0.0
    limit = max(4, int((x + w - 8 - value_px - left) / TITLE_LETTER_PX))
    out.append(text(left, y + 19, 12.5, title, amounts.elide(style.title, limit), BOLD))
    out.append(text(left, y + 36, 11, quiet, amounts.elide(style.detail, 22)))
    if style.value:
        out.append(text(x + w - 8, y + 19, 11, quiet, style.value, END))
    if style.share is not None:
        wide = max(1.0, style.share * (w - STRIP - 16))
        out.append(rect(left, y + h - 5, wide, 2.5, style.colour))
    return "".join([*out, "</g>"])


def _jumps(shown: Scene, ink: Colours) -> list[str]:
    out: list[str] = []
    for jumps, arrow, low in ((shown.jumps_out, "↦", True), (shown.jumps_in, "⇥", False)):
        for box, others in jumps.items():
            x, y, w, h = shown.rectangle(box)
            names = ", ".join(shown.display.boxes[o].label for o in others[:6])
            more = f" and {len(others) - 6} more" if len(others) > 6 else ""
            word = "leads to" if low else "comes from"
            stub = y + (h - 2 if low else 11)
            label = text(x + w + 4, stub, 10, ink.quiet, f"{arrow}{len(others)}")
            out.append(f"<g><title>{word} {escape(names + more)}</title>{label}</g>")
    return out


def placement_svg(graph: GraphRecord, placement: Placement | None, *, dark: bool = False) -> str:
    """Draw a graph and a placement as SVG in one call, for reports.

    Args:
        graph: The graph.
        placement: The placement; without one the boxes are grey.
        dark: Whether the background is dark.
    """
    shown = placement_scene(graph, placement)
    styles, legend = style_boxes(shown, "toolchain", Colouring(placement, estimated=False))
    crossing = transitions(shown, placement)
    return render(shown, styles, legend, outlines(shown, placement), "", dark, crossing)
