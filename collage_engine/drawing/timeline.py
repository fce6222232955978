"""Arranges what the layers of a placement take over time: as bars, as SVG, and as a trace.

There is a row for each toolchain on each device, in which each partition is a bar with its layers
below it, and one for what is between partitions. The desktop, reports and SVG draw the same bars.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from xml.sax.saxutils import escape

from collage_engine.drawing.box_styles import CHANGES
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.palette import (
    DARK,
    LIGHT,
    UNPLACED,
    Colours,
    Look,
    mix,
    text_on,
    toolchain_look,
)
from collage_engine.drawing.svg import BOLD, MIDDLE, picture, rect, text
from collage_engine.records.operators import short_name
from collage_engine.records.placement import Placement
from collage_engine.support.text import counted
from collage_engine.wording.amounts import elide, time_text
from collage_engine.wording.layers import Span, placement_differences, spans
from collage_engine.wording.titles import toolchain_title

BETWEEN = "Between"
"""The row of conversions and of what passes between layers."""
LAYER_TINT = 0.5
"""Share of the background in the colour of a layer, so that it is told from its partition."""
WIDTH_PX, ROW_PX, LABEL_PX, BAR_PX = 1120, 62, 130, 22
"""Width of an SVG picture, height of a row, width of its name, and height of a bar, in pixels;
chosen."""
LETTER_PX = 6.4
"""Width of a letter on a bar: the mean over names of operators in DejaVu Sans of 11 pixels."""

TRACE_RUN, TRACE_BETWEEN = "run", "between partitions"
"""Names of the tracks of the whole run, and of what lies between partitions."""
PROCESS = 1
"""Number of the process in the trace, which has one."""


@dataclass(frozen=True)
class TimeBar:
    """A partition, a layer, or what is between them, as a bar."""

    kind: Literal["partition", "layer", "between"]
    row: int
    begin_us: float
    end_us: float
    title: str
    name: str = ""
    """The first of its nodes."""
    detail: str = ""
    """What ran it."""
    operators: tuple[int, ...] = ()
    look: Look = UNPLACED
    blocks: int = 1
    """Equal blocks of the model of which it is the sum."""
    ratio: float | None = None
    """Times what the compared placement takes for the same part; None: it is not compared."""

    @property
    def us(self) -> float:
        """Return how long it is, in microseconds."""
        return self.end_us - self.begin_us

    def tip(self, whole_us: float) -> str:
        """Return all that is known of it, in lines."""
        share = f" ({100 * self.us / whole_us:.2g} %)" if whole_us else ""
        when = f"{time_text(self.us)}{share}, from {time_text(self.begin_us)} on"
        if self.ratio is not None:
            when += f"; its part of the model takes {self.ratio:.2f} times the other's time"
        head = " · ".join(filter(None, (self.title, self.name)))
        return "\n".join(filter(None, (head, when, self.detail)))


@dataclass(frozen=True)
class Timeline:
    """A placement over time.

    Attributes:
        rows: The names of the rows, from the top.
        bars: Partitions, layers and what is between them, each kind by its begin.
        transitions: Pairs of partitions' bars of which the second reads what the first makes.
        end_us: When the run ends.
    """

    rows: tuple[str, ...]
    bars: tuple[TimeBar, ...]
    transitions: tuple[tuple[TimeBar, TimeBar], ...]
    end_us: float


def timeline(graph: OperatorGraph, placement: Placement) -> Timeline:
    """Arrange a placement over time.

    Args:
        graph: The graph.
        placement: A placement of it; one that was not profiled has no layers.
    """
    parts, pairs = placement.partitions, readers_of_partitions(graph, placement)
    devices = {part.device for part in parts}
    names = [
        toolchain_title(part.toolchain) + (f", {part.device}" if len(devices) > 1 else "")
        for part in parts
    ]
    place = {name: at for at, name in enumerate((*dict.fromkeys(names), BETWEEN))}
    wholes: dict[int, list[TimeBar]] = {}
    """The bars of each partition."""
    inside: list[TimeBar] = []
    between: list[TimeBar] = []

    def add_between(begin_us: float, end_us: float, detail: str, title: str = "") -> None:
        bar = TimeBar("between", place[BETWEEN], begin_us, end_us, title, detail=detail)
        between.append(bar)

    last_us = 0.0
    for number, group in itertools.groupby(spans(placement), lambda span: span.layer.partition):
        found = list(group)
        begin, end = found[0].begin_us, found[-1].end_us
        if begin > last_us:
            add_between(last_us, begin, "passes between two calls")
        last_us = end
        if number is None:
            for span in found:
                add_between(span.begin_us, span.end_us, "a conversion", span.layer.name)
            continue
        part, row = parts[number], place[names[number]]
        look = toolchain_look(part.toolchain)
        nodes = counted(graph.count_nodes(part.nodes), "node")
        texts = _texts(graph, part.nodes, f"{part.id} of {nodes}")
        whole = TimeBar("partition", row, begin, end, *texts, part.nodes, look)
        wholes.setdefault(number, []).append(whole)
        for span in found if placement.layers else ():
            layer = span.layer
            texts = _texts(graph, layer.operators, layer.name)
            if layer.blocks > 1:
                texts = f"{layer.name}: {graph.content(layer.operators)}", texts[1], ""
            about = layer.operators, look, layer.blocks
            inside.append(TimeBar("layer", row, span.begin_us, span.end_us, *texts, *about))
    end_us = max(last_us, placement.measured_us or 0.0)
    if end_us > last_us and placement.layers:
        add_between(last_us, end_us, "passes after the last call")
    ordered = sorted(itertools.chain(*wholes.values()), key=lambda bar: bar.begin_us)
    return Timeline(
        tuple(name for name in place if between or name != BETWEEN),
        (*ordered, *inside, *between),
        tuple((wholes[a][-1], wholes[b][0]) for a, b in pairs if a in wholes and b in wholes),
        end_us,
    )


def against(graph: OperatorGraph, placement: Placement, other: Placement) -> Timeline:
    """Arrange a placement over another one, with how their layers differ.

    Args:
        graph: The graph.
        placement: The placement above.
        other: The placement below; layers of both that compute the same nodes are compared.
    """
    shown, below = timeline(graph, placement), timeline(graph, other)
    ratios = {
        operator: found.us / found.other_us
        for found in placement_differences(placement, other)
        if found.us > 0 and found.other_us > 0
        for operator in found.operators
    }

    def compared(bar: TimeBar, rows: int, power: int) -> TimeBar:
        first = next(iter(bar.operators), None)
        ratio = ratios.get(first) if first is not None and bar.kind == "layer" else None
        return replace(bar, row=bar.row + rows, ratio=None if ratio is None else ratio**power)

    def lower(bar: TimeBar) -> TimeBar:
        return compared(bar, len(shown.rows), -1)

    return Timeline(
        (*shown.rows, *(f"{name}\ncompared" for name in below.rows)),
        (*(compared(bar, 0, 1) for bar in shown.bars), *map(lower, below.bars)),
        (*shown.transitions, *((lower(a), lower(b)) for a, b in below.transitions)),
        max(shown.end_us, below.end_us),
    )


def _texts(graph: OperatorGraph, operators: tuple[int, ...], detail: str) -> tuple[str, str, str]:
    """Return the title of some operators, the name of the first, and what ran them."""
    if not operators:
        return detail, "", ""
    names = graph.onnx_names(operators)
    return graph.label(operators), short_name(names[0]) if names else "", detail


def readers_of_partitions(graph: OperatorGraph, placement: Placement) -> list[tuple[int, int]]:
    """Return the pairs of partitions, by their places, of which one reads what the other makes."""
    owner = {k: place for place, part in enumerate(placement.partitions) for k in part.nodes}
    pairs = ((owner[a], owner[b]) for a, b in graph.edges if a in owner and b in owner)
    return [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]


def timeline_svg(shown: Timeline, *, dark: bool = False) -> str:
    """Write a timeline as one SVG document; every bar carries a ``<title>``.

    Args:
        shown: The bars.
        dark: Whether the background is dark.
    """
    ink = DARK if dark else LIGHT
    scale = (WIDTH_PX - LABEL_PX - 16) / (shown.end_us or 1.0)
    height = ROW_PX * len(shown.rows) + 30
    out = []
    # A step of 1, 2 or 5 times a power of ten, so that the ruler's labels do not touch.
    least = LABEL_PX / scale
    power = 10.0 ** math.floor(math.log10(least))
    step = next((power * n for n in (1, 2, 5) if power * n >= least), 10 * power)
    for number in range(int(shown.end_us / step) + 1):
        x = LABEL_PX + number * step * scale
        line = f'stroke="{ink.border}" stroke-opacity="0.5"'
        out.append(f'<path d="M{x:.1f},22 V{height}" {line}/>')
        moment = time_text(number * step) if number else "0"
        out.append(text(x, 15, 11, ink.quiet, moment, MIDDLE))
    for row, name in enumerate(shown.rows):
        middle = 30 + row * ROW_PX + BAR_PX / 2
        out.append(text(8, middle + 4, 12, ink.text, elide(name, 18), BOLD))
    out += [_svg_bar(bar, shown.end_us, scale, ink) for bar in shown.bars]
    for one, other in shown.transitions:
        begin = f"{LABEL_PX + one.end_us * scale:.1f},{30 + one.row * ROW_PX + BAR_PX / 2}"
        end = f"{LABEL_PX + other.begin_us * scale:.1f},{30 + other.row * ROW_PX + BAR_PX / 2}"
        out.append(f'<path d="M{begin} L{end}" stroke="{ink.text}" stroke-opacity="0.6"/>')
    return picture(WIDTH_PX, height, "The run over time", ink, out)


def _svg_bar(bar: TimeBar, whole_us: float, scale: float, ink: Colours) -> str:
    x = LABEL_PX + bar.begin_us * scale
    y = 30 + bar.row * ROW_PX + (BAR_PX + 2 if bar.kind == "layer" else 0)
    width, fill = max(0.5, bar.us * scale), bar_colour(bar, ink.canvas, ink.border)
    title = elide(bar.title, int((width - 8) / LETTER_PX)) if width > 30 else ""
    label = text(x + 4, y + 15, 11, text_on(fill), title) if title else ""
    body = rect(x, y, width, BAR_PX, fill, f' stroke="{ink.canvas}" stroke-width="0.5"')
    return f"<g><title>{escape(bar.tip(whole_us))}</title>{body}{label}</g>"


def bar_colour(bar: TimeBar, background: str, between: str) -> str:
    """Return the fill of a bar: its toolchain's colour, lighter for a layer.

    Of a layer that is compared it is the colour of what was gained or lost, full at twice the time.

    Args:
        bar: The bar.
        background: The colour behind it.
        between: The colour of what is between partitions.
    """
    if bar.kind == "between":
        return between
    if bar.ratio is not None:
        way = CHANGES["gained" if bar.ratio < 1 else "lost"].colour
        return mix(between, way, min(1.0, abs(math.log2(bar.ratio))))
    return mix(bar.look.colour, background, LAYER_TINT if bar.kind == "layer" else 0.0)


def trace_of(
    placement: Placement,
    transitions: Iterable[tuple[int, int]],
    title: str,
    toolchain: Callable[[str], str] = toolchain_title,
) -> dict[str, Any]:
    """Return a run in Chrome's trace format, which Perfetto opens.

    It has a track for each toolchain, with a slice for each partition and, inside, one for each of
    its layers; a track for what lies between partitions; and an arrow wherever a partition reads
    what another one made. Together the slices of partitions and of what is between them fill the
    run without gaps. The format is described in "Trace Event Format" (Google, 2016): complete
    events (X), flows (s, f) and metadata (M), in microseconds.

    Args:
        placement: The placement, with its layers and what the run took.
        transitions: Pairs of partitions, by their places, of which one reads what the other makes.
        title: What the process is called.
        toolchain: Returns what a toolchain is called.
    """
    parts, end_us = placement.partitions, placement.measured_us or 0.0
    toolchains = dict.fromkeys(part.toolchain for part in parts)
    tracks = {name: n for n, name in enumerate([TRACE_RUN, *toolchains, TRACE_BETWEEN], start=1)}
    between = tracks[TRACE_BETWEEN]
    events = [_slice(title, tracks[TRACE_RUN], 0.0, end_us)]
    shown: dict[int | None, list[Span]] = {}
    """The layers of each partition, and of none."""
    at = 0.0
    for place, group in itertools.groupby(spans(placement), lambda span: span.layer.partition):
        inside, track = list(group), between
        shown.setdefault(place, []).extend(inside)
        if place is not None:
            part, begin, end = parts[place], inside[0].begin_us, inside[-1].end_us
            track, names = tracks[part.toolchain], part.onnx_nodes
            about = {"nodes": ", ".join(names), "estimated_us": part.estimated_us}
            ends = " … ".join(dict.fromkeys((*names[:1], *names[-1:])))
            events.append(_slice(TRACE_BETWEEN, between, at, begin))
            events.append(_slice(f"{part.id} {ends}".strip(), track, begin, end, about))
            at = end
        events += [_slice(one.layer.name, track, one.begin_us, one.end_us) for one in inside]
    events.append(_slice(TRACE_BETWEEN, between, at, end_us))
    for number, pair in enumerate(transitions):
        if not shown.keys() >= {*pair}:
            continue  # all that it did was folded into views
        # An arrow belongs to the slices in which its ends lie.
        for phase, place, end in zip("sf", pair, (-1, 0), strict=True):
            arrow = {"ph": phase, "name": "value", "cat": "transition", "id": number, "bp": "e"}
            track, moment = tracks[parts[place].toolchain], shown[place][end].begin_us
            events.append(arrow | {"pid": PROCESS, "tid": track, "ts": moment})
    names_of_tracks = [
        {"ph": "M", "name": f"thread_{key}", "pid": PROCESS, "tid": number, "args": {key: value}}
        for name, number in tracks.items()
        for key, value in (
            ("name", toolchain(name) if name in toolchains else name),
            ("sort_index", number),
        )
    ]
    process = {"ph": "M", "name": "process_name", "pid": PROCESS, "args": {"name": title}}
    return {"traceEvents": [process, *names_of_tracks, *events], "displayTimeUnit": "ns"}


def _slice(
    name: str, track: int, begin: float, end: float, about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a complete event; times are in microseconds."""
    event = {"ph": "X", "name": name, "pid": PROCESS, "tid": track, "ts": begin, "dur": end - begin}
    return event | ({"args": dict(about)} if about else {})
