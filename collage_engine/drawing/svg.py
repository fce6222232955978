"""Writes a scene as an SVG picture that is self-contained and keeps text as text."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

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


def _attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})


def render(
    shown: Scene,
    styles: Sequence[BoxStyle],
    legend: Sequence[LegendEntry] = (),
    parts: Sequence[Outline] = (),
    title: str = "",
    dark: bool = False,
    crossing: Sequence[DrawnTransition] = (),
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
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" '
        f'font-family="Inter, system-ui, sans-serif" aria-label="{_attribute(title or "graph")}">',
        "<defs>",
        *(
            f'<pattern id="{ink.name}-{name}" width="6" height="6" '
            f'patternUnits="userSpaceOnUse">'
            f'<g fill="none" stroke="#000" stroke-opacity="0.28" stroke-width="1">'
            f"{_PATTERNS[name]}</g></pattern>"
            for name in used
        ),
        "</defs>",
        f'<rect width="100%" height="100%" fill="{ink.canvas}"/>',
        f'<text x="{ACROSS_GAP}" y="32" font-size="15" font-weight="600" fill="{ink.text}">'
        f"{escape(title)}</text>",
    ]
    out.extend(_legend(legend, ink))
    out.append(f'<g transform="translate({ACROSS_GAP} {ACROSS_GAP + head})">')
    for rim in (True, False):
        out.extend(_tint(shown, part, styles, ink, rim) for part in parts)
    out.append(f'<g fill="none" stroke="{ink.edge}" stroke-width="1.2">')
    for route in shown.layout.routes:
        if route:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in route)
            out.append(f'<polyline points="{points}"/>')
    out.append("</g>")
    out.extend(_skips(shown, ink))
    drawn = [arrow for arrow in crossing if shown.layout.routes[arrow.edge]]
    out.extend(_crossing(shown, arrow, ink) for arrow in drawn)
    for box, style in enumerate(styles):
        out.append(_box(shown, box, style, ink))
    left = labels_on_the_left(shown, drawn)
    for arrow in drawn:
        tip = shown.layout.routes[arrow.edge][-1]
        out.append(_crossing_label(arrow, tip, ink, on_the_left=arrow.edge in left))
    out.extend(_jumps(shown, ink))
    out.append("</g></svg>")
    return "\n".join(out)


def _legend(legend: Sequence[LegendEntry], ink: Colours) -> list[str]:
    out: list[str] = []
    x = ACROSS_GAP
    for entry in legend:
        label = f"{entry.label or 'not placed'}: {entry.detail or entry.count}"
        out.append(
            f'<rect x="{x:.0f}" y="44" width="28" height="18" rx="3" fill="{entry.colour}"/>'
            f'<text x="{x + 14:.0f}" y="57" font-size="10" font-weight="600" '
            f'text-anchor="middle" fill="{entry.text}">{escape(entry.tag)}</text>'
            f'<text x="{x + 34:.0f}" y="57.5" font-size="12" fill="{ink.quiet}">'
            f"{escape(label)}</text>"
        )
        x += 34 + len(label) * 6.8 + 22
    return out


def _tint(shown: Scene, part: Outline, styles: Sequence[BoxStyle], ink: Colours, rim: bool) -> str:
    """Return a partition's tint: its boxes grown a little, joined where they are neighbours."""
    colour = styles[part.boxes[0]].colour
    fill = mix(colour, ink.canvas, 0.35 if rim else 0.78)
    grow = 9.0 if rim else 7.5
    out = [f'<g fill="{fill}" stroke="none" data-partition="{_attribute(part.partition)}">']
    for box in part.boxes:
        x, y, w, h = shown.rectangle(box)
        out.append(
            f'<rect x="{x - grow:.1f}" y="{y - grow:.1f}" width="{w + 2 * grow:.1f}" '
            f'height="{h + 2 * grow:.1f}" rx="{grow:.1f}"/>'
        )
    for edge in part.edges:
        between = bridge(shown, edge)
        if between is not None:
            x, y, w, h = between
            side = grow if shown.upright else 0.0
            top = grow - side
            out.append(
                f'<rect x="{x - side:.1f}" y="{y - top:.1f}" width="{w + 2 * side:.1f}" '
                f'height="{h + 2 * top:.1f}"/>'
            )
    out.append("</g>")
    return "".join(out)


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
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in route)
    head = " ".join(f"{x:.1f},{y:.1f}" for x, y in arrow_head(route, ARROW))
    return (
        f"<g><title>{escape(each.sentence)}</title>"
        f'<polyline points="{points}" fill="none" stroke="{ink.text}" stroke-width="2.2"/>'
        f'<polygon points="{head}" fill="{ink.text}"/></g>'
    )


def _crossing_label(
    each: DrawnTransition, tip: tuple[float, float], ink: Colours, *, on_the_left: bool
) -> str:
    """Return bytes, conversion and cost of a transition, beside its arrow."""
    x, y = tip
    anchor = ' text-anchor="end"' if on_the_left else ""
    return (
        f'<text x="{x + (-12 if on_the_left else 12):.1f}" y="{y - 9:.1f}"{anchor} '
        f'font-size="10" fill="{ink.text}" '
        f'stroke="{ink.canvas}" stroke-width="3" paint-order="stroke">'
        f"{escape(each.label)}</text>"
    )


def _box(shown: Scene, box: int, style: BoxStyle, ink: Colours) -> str:
    x, y, w, h = shown.rectangle(box)
    item = shown.display.boxes[box]
    tip = " · ".join(
        part for part in (item.label, style.title, style.detail, style.value, style.note) if part
    )
    out = [f"<g><title>{escape(tip)}</title>"]
    dash = ' stroke-dasharray="4 3"' if style.dashed else ""
    fill = style.colour if style.filled else ink.raised
    text = style.text if style.filled else ink.text
    quiet = style.text if style.filled else ink.quiet
    radius = 23 if style.kind in ("input", "output") else 5
    out.append(
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{w}" height="{h}" rx="{radius}" fill="{fill}" '
        f'stroke="{ink.border}"{dash}/>'
    )
    left = x + 14
    if item.is_work and not style.filled:
        shape = (
            f'd="M{x + 5:.1f},{y:.1f} h{STRIP - 5} v{h} h-{STRIP - 5} '
            f'a5,5 0 0 1 -5,-5 v-{h - 10} a5,5 0 0 1 5,-5 z"'
        )
        out.append(f'<path {shape} fill="{style.colour}"/>')
        if style.pattern != "solid":
            out.append(f'<path {shape} fill="url(#{ink.name}-{style.pattern})"/>')
        out.append(
            f'<text x="{x + STRIP / 2:.1f}" y="{y + h / 2 + 4:.1f}" font-size="11" '
            f'font-weight="600" text-anchor="middle" fill="{style.text}">{escape(style.tag)}</text>'
        )
        left = x + STRIP + 8
    value_px = 6.6 * len(style.value) + 8 if style.value else 0.0
    limit = max(4, int((x + w - 8 - value_px - left) / TITLE_LETTER_PX))
    out.append(
        f'<text x="{left:.1f}" y="{y + 19:.1f}" font-size="12.5" font-weight="600" '
        f'fill="{text}">{escape(amounts.elide(style.title, limit))}</text>'
        f'<text x="{left:.1f}" y="{y + 36:.1f}" font-size="11" fill="{quiet}">'
        f"{escape(amounts.elide(style.detail, 22))}</text>"
    )
    if style.value:
        out.append(
            f'<text x="{x + w - 8:.1f}" y="{y + 19:.1f}" font-size="11" text-anchor="end" '
            f'fill="{quiet}">{escape(style.value)}</text>'
        )
    if style.share is not None:
        out.append(
            f'<rect x="{left:.1f}" y="{y + h - 5:.1f}" '
            f'width="{max(1.0, style.share * (w - STRIP - 16)):.1f}" height="2.5" '
            f'fill="{style.colour}"/>'
        )
    out.append("</g>")
    return "".join(out)


def _jumps(shown: Scene, ink: Colours) -> list[str]:
    out: list[str] = []
    for jumps, arrow, low in ((shown.jumps_out, "↦", True), (shown.jumps_in, "⇥", False)):
        for box, others in jumps.items():
            x, y, w, h = shown.rectangle(box)
            names = ", ".join(shown.display.boxes[o].label for o in others[:6])
            more = f" and {len(others) - 6} more" if len(others) > 6 else ""
            word = "leads to" if low else "comes from"
            out.append(
                f"<g><title>{word} {escape(names + more)}</title>"
                f'<text x="{x + w + 4:.1f}" y="{y + (h - 2 if low else 11):.1f}" font-size="10" '
                f'fill="{ink.quiet}">{arrow}{len(others)}</text></g>'
            )
    return out


def placement_svg(
    graph: GraphRecord,
    placement: Placement | None,
    *,
    title: str = "",
    dark: bool = False,
) -> str:
    """Draw a graph and a placement as SVG in one call, for reports.

    Args:
        graph: The graph.
        placement: The placement; without one the boxes are grey.
        title: A heading.
        dark: Whether the background is dark.
    """
    shown = placement_scene(graph, placement)
    styles, legend = style_boxes(shown, "toolchain", Colouring(placement, estimated=False))
    crossing = transitions(shown, placement)
    return render(shown, styles, legend, outlines(shown, placement), title, dark, crossing)
