"""Folding a layered drawing into columns, and routing its edges there.

Ranks are cut into columns where few edges cross, so that the picture has the wanted aspect;
edges from one column to the next run down, through the gutter, and in at the top. All work is in
(across, along) coordinates; only the end turns them for horizontal pictures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from collage_engine.drawing.layered import Layered

BOX_WIDTH, BOX_HEIGHT = 172.0, 46.0
ACROSS_GAP, ALONG_GAP = 30.0, 26.0
_GUTTER = 78.0
_LANE = 6.0
_FOLD_RANKS = 22
"""Shorter graphs are read well as they are."""
_LANES = 8
"""At most this many edges are led from one column to the next; with more, all become jumps."""


class LayoutRequest(msgspec.Struct, kw_only=True):
    """The graph to lay out; its edges may hold cycles, but no loops and no duplicates."""

    count: int
    edges: list[tuple[int, int]]
    orientation: str = "vertical"
    fold: bool = True
    aspect: float = 1.5
    """Width over height the folded picture should have."""
    engine: str = "fast-sugiyama"


class Layout(msgspec.Struct, kw_only=True):
    """Places of boxes and routes of edges.

    A place is the top left corner of a box; a route is a polyline. An empty route is a jump: the
    edge is drawn as a stub at each end.
    """

    places: list[tuple[float, float]]
    routes: list[list[tuple[float, float]]]
    width: float
    height: float
    columns: int = 1
    engine: str = "fast-sugiyama"


def _breaks(crossing: Sequence[int], ranks: int, columns: int) -> list[int]:
    """The first rank of every column: near equal shares, where the fewest edges cross."""
    starts = [0]
    share = ranks / columns
    slack = max(1, int(share * 0.25))
    for at in range(1, columns):
        ideal = round(at * share)
        low, high = max(starts[-1] + 1, ideal - slack), min(ranks - 1, ideal + slack)
        if low > high:
            continue
        # One edge less to lead over is worth three quarters of the slack: columns of like height.
        starts.append(
            min(range(low, high + 1), key=lambda r: crossing[r] + 1.3 * abs(r - ideal) / slack)
        )
    return starts


def picture(
    request: LayoutRequest, placed: Layered, short: set[tuple[int, int]], engine: str
) -> Layout:
    """Fold a layered drawing into columns and route its edges.

    Args:
        request: What to draw, and the aspect that the picture should have.
        placed: Place and rank of every vertex.
        short: The edges that are drawn as lines; the others become jumps.
        engine: What made the layered drawing.
    """
    upright = request.orientation != "horizontal"
    across = (BOX_WIDTH if upright else BOX_HEIGHT) + ACROSS_GAP
    deep = BOX_HEIGHT if upright else BOX_WIDTH
    along = deep + ALONG_GAP
    half = (BOX_WIDTH if upright else BOX_HEIGHT) / 2
    count = request.count
    total = max(placed.rank, default=-1) + 1
    crossing = [0] * (total + 1)
    for a, b in short:
        crossing[placed.rank[a] + 1] += 1
        crossing[min(total, placed.rank[b] + 1)] -= 1
    for r in range(1, total):
        crossing[r] += crossing[r - 1]
    # What every rank spans across, boxes and passing edges alike.
    low, high = [math.inf] * total, [-math.inf] * total
    for x, r in [*zip(placed.x, placed.rank, strict=True)] + [
        place for inner in placed.chains.values() for place in inner
    ]:
        low[r] = min(low[r], x)
        high[r] = max(high[r], x)

    def widths(starts: list[int]) -> list[tuple[float, float]]:
        ends = [*starts[1:], total]
        return [
            (min(low[s:e], default=0.0), max(high[s:e], default=0.0))
            for s, e in zip(starts, ends, strict=True)
        ]

    def extent(starts: list[int]) -> tuple[float, float]:
        ends = [*starts[1:], total]
        wide = sum((b - a) * across + 2 * half for a, b in widths(starts))
        tall = max((e - s for s, e in zip(starts, ends, strict=True)), default=1) * along
        return wide + _GUTTER * (len(starts) - 1), tall

    starts = [0]
    if request.fold and total > _FOLD_RANKS:
        wanted = request.aspect if upright else 1 / request.aspect
        wide, tall = extent([0])
        if wide / tall < wanted * 0.45:
            guess = max(2, round(math.sqrt(tall * wanted / (wide + _GUTTER))))
            options = [
                _breaks(crossing, total, k) for k in range(max(2, guess // 2), guess * 2 + 2)
            ]
            starts = min(options, key=lambda s: abs(math.log(extent(s)[0] / extent(s)[1] / wanted)))
    column_of = [0] * max(total, 1)
    for at, start in enumerate(starts):
        for r in range(start, total):
            column_of[r] = at
    spans = widths(starts)
    offset: list[float] = []
    left = 0.0
    for near, far in spans:
        offset.append(left - near * across + half)
        left += (far - near) * across + 2 * half + _GUTTER

    def spot(x: float, r: int) -> tuple[float, float]:
        """Centre across, top along."""
        column = column_of[r]
        return offset[column] + x * across, (r - starts[column]) * along

    routes = _routes(
        request.edges,
        placed,
        short,
        spot,
        column_of,
        spans,
        offset,
        across,
        half,
        deep,
        along,
        starts,
        total,
    )
    corners = []
    for v in range(count):
        u, w = spot(placed.x[v], placed.rank[v])
        corners.append((u - half, w) if upright else (w, u - half))
    if not upright:
        routes = [[(w, u) for u, w in route] for route in routes]
    box = (BOX_WIDTH, BOX_HEIGHT)
    return Layout(
        places=corners,
        routes=routes,
        width=max((x + box[0] for x, _ in corners), default=0.0),
        height=max((y + box[1] for _, y in corners), default=0.0),
        columns=len(starts),
        engine=engine,
    )


def _routes(
    edges, placed, short, spot, column_of, spans, offset, across, half, deep, along, starts, total
):
    """The polylines (across, along) of all edges, in their order; empty for jumps."""
    led: dict[int, list[tuple[int, int]]] = {}
    for a, b in edges:
        if (a, b) in short:
            first, last = column_of[placed.rank[a]], column_of[placed.rank[b]]
            if last == first + 1:
                led.setdefault(first, []).append((a, b))
    lane = {
        edge: at
        for found in led.values()
        if len(found) <= _LANES
        for at, edge in enumerate(sorted(found, key=lambda e: -placed.x[e[0]]))
    }
    ports = _ports(short, placed, half)
    routes: list[list[tuple[float, float]]] = []
    for a, b in edges:
        edge = (a, b)
        if edge not in short:
            routes.append([])
            continue
        ra, rb = placed.rank[a], placed.rank[b]
        first, last = column_of[ra], column_of[rb]
        if first != last and edge not in lane:
            routes.append([])
            continue
        u, w = spot(placed.x[a], ra)
        out, into = ports[edge]
        points = [(u + out, w + deep)]
        inner = placed.chains.get(edge, [])
        here = [spot(x, r) for x, r in inner if column_of[r] == first]
        for du, dw in here:
            points += [(du, dw), (du, dw + deep)]
        if first != last:
            at = lane[edge]
            end = starts[last]
            floor = (end - 1 - starts[first]) * along + deep
            bottom = floor + 9 + at * 2.0
            a_span = spans[first]
            gutter = offset[first] + a_span[1] * across + half + 25 + at * _LANE
            points.append((points[-1][0], bottom))
            points.append((gutter, bottom))
            there = [spot(x, r) for x, r in inner if column_of[r] == last]
            tu, tw = spot(placed.x[b], rb)
            top = -12.0 - at * 2.0
            target_u = there[0][0] if there else tu + into
            points += [(gutter, top), (target_u, top)]
            for du, dw in there:
                points += [(du, dw), (du, dw + deep)]
            points.append((tu + into, tw))
        else:
            tu, tw = spot(placed.x[b], rb)
            points.append((tu + into, tw))
        routes.append(_simple(points))
    return routes


def _ports(short, placed, half):
    """Offsets from the box's middle, so that several edges do not meet in one point."""
    out: dict[int, list[tuple[float, tuple[int, int]]]] = {}
    into: dict[int, list[tuple[float, tuple[int, int]]]] = {}
    for edge in short:
        a, b = edge
        inner = placed.chains.get(edge, [])
        out.setdefault(a, []).append((inner[0][0] if inner else placed.x[b], edge))
        into.setdefault(b, []).append((inner[-1][0] if inner else placed.x[a], edge))

    def spread(found):
        found = sorted(found)
        n = len(found)
        step = min(18.0, half / n)
        return {edge: (at - (n - 1) / 2) * step for at, (_, edge) in enumerate(found)}

    outs: dict[tuple[int, int], float] = {}
    intos: dict[tuple[int, int], float] = {}
    for found in out.values():
        outs.update(spread(found))
    for found in into.values():
        intos.update(spread(found))
    return {edge: (outs[edge], intos[edge]) for edge in short}


def _simple(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The polyline without points that lie on the line between their neighbours."""
    kept = [points[0]]
    for at in range(1, len(points) - 1):
        (ax, ay), (bx, by), (cx, cy) = kept[-1], points[at], points[at + 1]
        if abs((bx - ax) * (cy - ay) - (by - ay) * (cx - ax)) > 0.5:
            kept.append(points[at])
    kept.append(points[-1])
    return kept
