"""Turns boxes and edges into a picture that fits a screen: places of boxes, routes of edges.

1. *Order.* Collapsing groups can close cycles; edges against the order become jumps.
2. *Ranks* by longest path; sources without inputs sink next to their first consumer, so that
   one attention mask does not draw eighty lines through the whole graph.
3. *Cut.* An edge over more ranks than two columns hold (``2 * FOLD_RANKS``) becomes a jump: a
   stub at each end. The cost of layered layout is the dummy vertices of long edges, not the
   number of nodes, and nobody can follow such a line anyway. The same for all but the nearest
   readers of a value that very many read, and for an edge that would slant across more than
   ``AT_A_GLANCE`` boxes.
4. *Place* the vertices of each rank (``layered``).
5. *Fold.* A deep network is a thread hundreds of times longer than wide. Ranks are cut into
   columns, like a newspaper, where few edges cross; those are led to the next column's top.
   Where the graph runs from left to right the columns are lines of text.

An edge over several ranks is split by a *dummy* vertex in every rank between. Sweeps down, up and
down again order each rank by the mean place of what its vertices are joined with in the rank before
(the barycentre heuristic of Sugiyama, Tagawa and Toda, 1981) and put them as near to those places
as their widths allow. Cost: O(V + E) for each sweep but for sorting the ranks, dummies counted.

Ranks are cut into columns where few edges cross, so that the picture has the wanted aspect;
edges from one column to the next run down, through the gutter, and in at the top. All work is in
(across, along) coordinates; only the end turns them for horizontal pictures.

A graph of 10,000 boxes takes half a second, one of 400 takes 15 ms (Python 3.11, Zen 4).
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

SWEEPS = 6
"""Sweeps over all ranks, down and up in turn: they take the 82 crossings that one leaves in the
graph of a RAFT to 20 (three to 36, seven to 27); ten other models have none after the first."""
DUMMY_WIDTH = 0.4
"""Room that an edge takes beside boxes, as a share of theirs; chosen."""


Point = tuple[float, float]
Edge = tuple[int, int]


def layered(
    edges: Iterable[Edge], rank: Sequence[int]
) -> tuple[list[float], dict[Edge, list[tuple[float, int]]]]:
    """Place vertices in rows.

    Args:
        edges: Pairs of vertices, each edge once.
        rank: The row of each vertex; it grows along every edge.

    Returns:
        The place of each vertex across, in units of one box from 0 on; and the (place, rank) of
        each edge's dummies, from source to target.
    """
    ranks, count = list(rank), len(rank)
    dummies: dict[Edge, range] = {}
    for source, target in edges:
        first = len(ranks)
        ranks.extend(range(ranks[source] + 1, ranks[target]))
        dummies[source, target] = range(first, len(ranks))
    above: list[list[int]] = [[] for _ in ranks]
    below: list[list[int]] = [[] for _ in ranks]
    for (source, target), inner in dummies.items():
        for upper, lower in pairwise([source, *inner, target]):
            above[lower].append(upper)
            below[upper].append(lower)
    rows: dict[int, list[int]] = {}
    for vertex, row in enumerate(ranks):
        rows.setdefault(row, []).append(vertex)
    widths = [1.0] * count + [DUMMY_WIDTH] * (len(ranks) - count)
    x = [0.0] * len(ranks)
    for sweep in range(SWEEPS):
        joined = below if sweep % 2 else above
        for row in sorted(rows, reverse=sweep % 2 == 1):
            wanted = {
                v: sum(x[u] for u in joined[v]) / len(joined[v]) if joined[v] else x[v]
                for v in rows[row]
            }
            held = rows[row] = sorted(rows[row], key=wanted.__getitem__)
            if len(held) == 1:
                # What stands alone stands in the middle, so that a deep drawing does not wander.
                x[held[0]] = 0.0
                continue
            places = _apart([wanted[v] for v in held], [widths[v] for v in held])
            for vertex, x_place in zip(held, places, strict=True):
                x[vertex] = x_place
    left = min(x, default=0.0)
    x = [x_place - left for x_place in x]
    return x[:count], {e: [(x[v], ranks[v]) for v in inner] for e, inner in dummies.items()}


def _apart(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return the places nearest to the wanted ones at which neighbours do not overlap.

    They have the least sum of squared distances: without the widths that is an isotonic
    regression, for which violators of the order are pooled at their mean (Ayer et al., 1955).

    Args:
        wanted: Places in ascending order.
        widths: The room that each one takes.
    """
    begins = [0.0]
    for one, other in pairwise(widths):
        begins.append(begins[-1] + (one + other) / 2)
    pools: list[tuple[float, int]] = []
    for wish, begin in zip(wanted, begins, strict=True):
        mean, size = wish - begin, 1
        while pools and pools[-1][0] >= mean:
            before, held = pools.pop()
            mean, size = (before * held + mean * size) / (held + size), held + size
        pools.append((mean, size))
    means = [mean for mean, size in pools for _ in range(size)]
    return [mean + begin for mean, begin in zip(means, begins, strict=True)]


BOX_WIDTH, BOX_HEIGHT = 172.0, 46.0
"""Size of a box in scene units, which are pixels at the scale 1; chosen."""
LEGIBLE_PX = 8.0
"""Height of the smallest letters that can still be read, in pixels; chosen. A box that is no higher
is a spot of colour."""
LEGIBLE_SCALE = LEGIBLE_PX / 13
"""Pixels of a scene unit from which on titles, letters of 13 units, can be read."""
AT_A_GLANCE = 7
"""Things that are taken in at once (Miller, The Magical Number Seven, Plus or Minus Two, 1956):
lines beside each other, bars of runs, boxes that are no graph to be read."""
STEP = 6.0
"""Distance of two lines that run beside each other, in scene units, by which all others are
measured; chosen."""
ARROW = 2 * STEP
"""Length of an arrow head."""
ACROSS_GAP, ALONG_GAP = 5 * STEP, 4.5 * STEP
"""Gaps between boxes of one rank, and between ranks."""
STRIP = 5 * STEP
"""Width of a box's coloured strip, in scene units: a tag of letters fits."""
FAN = AT_A_GLANCE
"""Readers of a value above which those over more than so many ranks are not drawn as lines, which
would say nothing that the jump stubs do not (a mask that all layers read)."""
_LANE_STEP = STEP / 3
"""Distance of two lanes above and below the columns, where most of their length is in the gutter.
"""
_BELOW, _BESIDE, _ABOVE = 1.5 * STEP, 4 * STEP, 2 * STEP
"""Distance of the first lane from the boxes below, beside and above."""
_PORT_STEP = 3 * STEP
"""Distance of two edges at a box at most."""
FOLD_RANKS = 22
"""Graphs with fewer ranks are read well in one column; chosen."""
_GUTTER = _BESIDE + (AT_A_GLANCE + 1) * STEP
"""Gap between columns, in which all lanes fit."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Places of boxes and routes of edges.

    A place is the top left corner of a box; a route is a polyline. An empty route is a jump: the
    edge is drawn as a stub at each end.
    """

    places: list[tuple[float, float]]
    routes: list[list[tuple[float, float]]]
    width: float
    height: float


def _breaks(crossing: Sequence[int], ranks: int, columns: int) -> list[int]:
    """Return the first rank of every column: near equal shares, where the fewest edges cross."""
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


class _Folded:
    """Places and routes of a layered drawing in columns, in (across, along) coordinates."""

    def __init__(
        self, short: Sequence[Edge], rank: Sequence[int], upright: bool, aspect: float
    ) -> None:
        """Place vertices, and cut their ranks into columns.

        Args:
            short: The edges that are drawn as lines where these can be followed.
            rank: The rank of each vertex.
            upright: Whether the graph runs from the top to the bottom.
            aspect: Width over height that the picture should have.
        """
        self.x, self._chains = layered(short, rank)
        self._rank = rank
        width, height = (BOX_WIDTH, BOX_HEIGHT) if upright else (BOX_HEIGHT, BOX_WIDTH)
        self.half, self.deep = width / 2, height
        self.across, self.along = width + ACROSS_GAP, height + ALONG_GAP
        self.ranks = max(rank, default=-1) + 1
        # The lowest and highest place of every rank, of boxes and passing edges alike.
        self._low, self._high = [math.inf] * self.ranks, [-math.inf] * self.ranks
        for x, at in chain(zip(self.x, rank, strict=True), *self._chains.values()):
            self._low[at] = min(self._low[at], x)
            self._high[at] = max(self._high[at], x)
        self.starts = [0]
        """First rank of every column."""
        if self.ranks > FOLD_RANKS:
            crossing = crossings(((rank[a], rank[b]) for a, b in short), self.ranks)
            self.starts = self._choose_starts(aspect if upright else 1 / aspect, crossing)
        self.spans = self._spans(self.starts)
        self.offset: list[float] = []
        """Where place 0 of each column lies."""
        left = 0.0
        for near, far in self.spans:
            self.offset.append(left - near * self.across + self.half)
            left += (far - near) * self.across + 2 * self.half + _GUTTER
        inner = self._chains.items()
        self._leaves = self._ports(0, {e: c[0][0] if c else self.x[e[1]] for e, c in inner})
        self._enters = self._ports(1, {e: c[-1][0] if c else self.x[e[0]] for e, c in inner})

    def place(self, x: float, rank: int) -> Point:
        """Return the centre across and the top along of a vertex."""
        column = self._column(rank)
        return (
            self.offset[column] + x * self.across,
            (rank - self.starts[column]) * self.along,
        )

    def _column(self, rank: int) -> int:
        return bisect(self.starts, rank) - 1

    def _spans(self, starts: list[int]) -> list[tuple[float, float]]:
        """Return the lowest and highest place of every column."""
        return [
            (min(self._low[s:e], default=0.0), max(self._high[s:e], default=0.0))
            for s, e in pairwise([*starts, self.ranks])
        ]

    def _extent(self, starts: list[int]) -> tuple[float, float]:
        """Return width and height of the whole drawing with these columns."""
        wide = sum((b - a) * self.across + 2 * self.half for a, b in self._spans(starts))
        tall = max(e - s for s, e in pairwise([*starts, self.ranks])) * self.along
        return wide + _GUTTER * (len(starts) - 1), tall

    def _choose_starts(self, wanted: float, crossing: Sequence[int]) -> list[int]:
        """Return the columns whose picture comes nearest to the wanted aspect."""
        wide, tall = self._extent([0])
        guess = max(1, round(math.sqrt(tall * wanted / (wide + _GUTTER))))
        options = [
            _breaks(crossing, self.ranks, columns)
            for columns in range(max(1, guess // 2), guess * 2 + 2)
        ]

        def off(starts: list[int]) -> float:
            wide, tall = self._extent(starts)
            return abs(math.log(wide / tall / wanted))

        return min(options, key=off)

    def _ports(self, end: int, towards: Mapping[Edge, float]) -> dict[Edge, float]:
        """Return where edges touch their boxes, from the box's middle, each elsewhere.

        Args:
            end: 0 for where they leave, 1 for where they enter.
            towards: The place that each edge leads to, which is their order.
        """
        touching: dict[int, list[Edge]] = {}
        for edge in sorted(towards, key=lambda edge: (towards[edge], edge)):
            touching.setdefault(edge[end], []).append(edge)
        ports = {}
        for together in touching.values():
            step = min(_PORT_STEP, self.half / len(together))
            for number, edge in enumerate(together):
                ports[edge] = (number - (len(together) - 1) / 2) * step
        return ports

    def routes(self, edges: Iterable[Edge]) -> list[list[Point]]:
        """Return the polylines (across, along) of all edges, in their order; empty for jumps."""
        lanes = self._lanes()
        return [self._route(edge, lanes) if edge in self._chains else [] for edge in edges]

    def _columns(self, edge: Edge) -> tuple[int, int]:
        return self._column(self._rank[edge[0]]), self._column(self._rank[edge[1]])

    def _lanes(self) -> dict[Edge, int]:
        """Return the lane in the gutter of every edge that is led to the next column.

        Where more are led to it than can be followed, all of them become jumps.
        """
        led: dict[int, list[Edge]] = {}
        for edge in self._chains:
            first, last = self._columns(edge)
            if last == first + 1:
                led.setdefault(first, []).append(edge)
        return {
            edge: lane
            for together in led.values()
            if len(together) <= AT_A_GLANCE
            for lane, edge in enumerate(sorted(together, key=lambda e: -self.x[e[0]]))
        }

    def _route(self, edge: Edge, lanes: Mapping[Edge, int]) -> list[Point]:
        first, last = self._columns(edge)
        if first != last and edge not in lanes:
            return []
        (left, top), (right, bottom) = (self.place(self.x[v], self._rank[v]) for v in edge)
        points = [(left + self._leaves[edge], top + self.deep), *self._through(edge, first)]
        end = (right + self._enters[edge], bottom)
        if first != last:
            rest = self._through(edge, last)
            target = rest[0][0] if rest else end[0]
            points += self._to_next_column(points[-1][0], target, first, lanes[edge])
            points += rest
        points.append(end)
        # A line that slants past so many boxes cannot be followed: the stubs of a jump can.
        widest = max(abs(b - a) for (a, up), (b, down) in pairwise(points) if up != down)
        return _simple(points) if widest <= AT_A_GLANCE * self.across else []

    def _through(self, edge: Edge, column: int) -> list[Point]:
        """Return the points that lead past the boxes of the ranks between, within one column."""
        points: list[Point] = []
        for x, rank in self._chains[edge]:
            if self._column(rank) == column:
                across, along = self.place(x, rank)
                points += [(across, along), (across, along + self.deep)]
        return points

    def _to_next_column(self, across: float, target: float, column: int, lane: int) -> list[Point]:
        """Return the points below one column, up through the gutter, and above the next."""
        ranks = self.starts[column + 1] - 1 - self.starts[column]
        bottom = ranks * self.along + self.deep + _BELOW + lane * _LANE_STEP
        right = self.offset[column] + self.spans[column][1] * self.across + self.half
        gutter = right + _BESIDE + lane * STEP
        top = -_ABOVE - lane * _LANE_STEP
        return [(across, bottom), (gutter, bottom), (gutter, top), (target, top)]


def crossings(spans: Iterable[tuple[int, int]], count: int) -> list[int]:
    """Return how many spans, from a place to a later one, cross the boundary before each place."""
    changes = [0] * (count + 1)
    for first, last in spans:
        changes[first + 1] += 1
        changes[last + 1] -= 1
    return list(accumulate(changes))


def _simple(points: list[Point]) -> list[Point]:
    """Return the polyline without points that lie on the line between their neighbours."""
    kept = [points[0]]
    for at in range(1, len(points) - 1):
        (ax, ay), (bx, by), (cx, cy) = kept[-1], points[at], points[at + 1]
        if abs((bx - ax) * (cy - ay) - (by - ay) * (cx - ax)) > 0.5:
            kept.append(points[at])
    kept.append(points[-1])
    return kept


def lay_out(
    count: int,
    edges: Sequence[tuple[int, int]],
    *,
    upright: bool = True,
    aspect: float = 1.5,
) -> Layout:
    """Lay out a graph.

    Args:
        count: How many boxes there are, numbered from 0.
        edges: Pairs of boxes; they may hold cycles, but no loops and no duplicates.
        upright: Whether the graph runs from the top to the bottom, and not from left to right.
        aspect: Width over height that the picture should have.

    Returns:
        Places of the boxes and routes of the edges.
    """
    forward, ranks = _ranked(count, edges)
    readers = Counter(a for a, _ in forward)
    longest = {a: FAN if fan > FAN else 2 * FOLD_RANKS for a, fan in readers.items()}
    short = [(a, b) for a, b in forward if ranks[b] - ranks[a] <= longest[a]]
    folded = _Folded(short, ranks, upright, aspect)
    routes = folded.routes(edges)
    corners = []
    for x, rank in zip(folded.x, ranks, strict=True):
        across, along = folded.place(x, rank)
        corners.append((across - folded.half, along))
    if not upright:
        corners = [(along, across) for across, along in corners]
        routes = [[(along, across) for across, along in route] for route in routes]
    ends = [(x + BOX_WIDTH, y + BOX_HEIGHT) for x, y in corners]
    ends += [point for route in routes for point in route]
    return Layout(
        places=corners,
        routes=routes,
        width=max((x for x, _ in ends), default=0.0),
        height=max((y for _, y in ends), default=0.0),
    )


def _ranked(count: int, edges: Sequence[Edge]) -> tuple[list[Edge], list[int]]:
    """Return the edges that follow the order of the drawing, and the rank of each vertex.

    The order is topological, smallest number first; vertices of a cycle come by number.
    """
    import networkx  # takes 0.2 s

    graph: networkx.DiGraph[int] = networkx.DiGraph(edges)
    graph.add_nodes_from(range(count))
    acyclic = networkx.condensation(graph)
    members = {at: sorted(acyclic.nodes[at]["members"]) for at in acyclic}
    order = networkx.lexicographical_topological_sort(acyclic, lambda at: members[at][0])
    position = {vertex: n for n, vertex in enumerate(v for at in order for v in members[at])}
    graph.remove_edges_from([(a, b) for a, b in edges if position[a] > position[b]])
    ranks = [0] * count
    for rank, vertices in enumerate(networkx.topological_generations(graph)):
        for vertex in vertices:
            ranks[vertex] = rank
    for vertex in graph:
        if graph.succ[vertex] and not graph.pred[vertex]:
            ranks[vertex] = min(ranks[reader] for reader in graph.succ[vertex]) - 1
    return [(a, b) for a, b in edges if graph.has_edge(a, b)], ranks
