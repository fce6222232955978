"""Turns boxes and edges into a picture that fits a screen: places of boxes, routes of edges.

1. *Order.* Collapsing groups can close cycles; edges against the order become jumps.
2. *Ranks* by longest path; sources without inputs sink next to their first consumer, so that
   one attention mask does not draw eighty lines through the whole graph.
3. *Cut.* An edge over more ranks than two columns hold (``2 * FOLD_RANKS``) becomes a jump: a
   stub at each end. The cost of layered layout is the dummy vertices of long edges, not the
   number of nodes (measured: 8.9 s → 0.4 s on 10,000 nodes), and nobody can follow such a line
   anyway. The same for all but the nearest readers of a value that very many read.
4. *Place* from waist to waist, with ``fast_sugiyama``, or ``layered`` where it is missing.
5. *Fold.* A deep network is a thread hundreds of times longer than wide. Ranks are cut into
   columns, like a newspaper, where few edges cross; those are led to the next column's top.
   In horizontal orientation the columns are lines of text.

``fast_sugiyama`` holds the GIL: call ``lay_out`` in a process that can be killed
(``layout_process``), never in a window's own.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from collage_engine.drawing.columns import FAN, FOLD_RANKS, Layout, LayoutRequest, picture
from collage_engine.drawing.layered import Layered, layered


def lay_out(request: LayoutRequest) -> Layout:
    """Lay out a graph.

    Args:
        request: Boxes, edges, orientation and engine.

    Returns:
        Places of the boxes and routes of the edges. Its ``engine`` is ``layered`` where
        ``fast_sugiyama`` is not installed.
    """
    count = request.count
    order = _order(count, request.edges)
    position = [0] * count
    for at, vertex in enumerate(order):
        position[vertex] = at
    forward = [(a, b) for a, b in request.edges if position[a] < position[b]]
    ranks = _ranks(count, order, forward)
    fan = [0] * count
    for a, _ in forward:
        fan[a] += 1
    longest = [FAN if readers > FAN else 2 * FOLD_RANKS for readers in fan]
    short = [(a, b) for a, b in forward if ranks[b] - ranks[a] <= longest[a]]
    engine = request.engine
    placed: Layered | None = None
    if engine == "fast-sugiyama":
        placed = _in_pieces(_fast, count, short, ranks)
    if placed is None:
        engine = "layered"
        placed = _in_pieces(layered, count, short, ranks)
    assert placed is not None
    return picture(request, placed, set(short), engine)


Engine = Callable[[int, Sequence[tuple[int, int]], Sequence[int]], Layered | None]


def _in_pieces(
    engine: Engine, count: int, edges: Sequence[tuple[int, int]], ranks: Sequence[int]
) -> Layered | None:
    """Lay out from waist to waist: ranks that hold one vertex and that no edge passes.

    Engines cost more than linearly (one encoder of 10,000 nodes: 12 s in one piece), and deep
    models repeat themselves: equal pieces are laid out once. Waists stand straight below each
    other, so that the drawing does not wander sideways. A piece whose engine puts something
    beside or beyond its waists is joined with the next and tried again.
    """
    total = max(ranks, default=-1) + 1
    held: list[list[int]] = [[] for _ in range(total)]
    for vertex, rank in enumerate(ranks):
        held[rank].append(vertex)
    waists = _waists(held, edges, ranks)
    if not waists:
        return _from_zero(engine(count, edges, ranks))
    bounds = sorted({0, *waists, total - 1})
    inside: list[list[tuple[int, int]]] = [[] for _ in bounds]
    for edge in edges:
        inside[bisect_right(bounds, ranks[edge[0]]) - 1].append(edge)
    whole = Layered(x=[0.0] * count, rank=[0] * count)
    known: dict[object, Layered | None] = {}
    straight = set(waists)
    start, at, last = 0, 0, len(bounds) - 1
    piece = whole
    vertices: list[int] = []
    dense: dict[int, int] = {}
    top: int | None = None
    bottom: int | None = None
    while at < last:
        for end in range(at + 1, last + 1):
            low, high = bounds[at], bounds[end]
            top = held[low][0] if low in straight else None
            bottom = held[high][0] if high in straight else None
            vertices = [v for r in range(low, high + 1) for v in held[r]]
            dense = {v: n for n, v in enumerate(vertices)}
            own = [(dense[a], dense[b]) for part in inside[at:end] for a, b in part]
            levels = [ranks[v] - low for v in vertices]
            key = (tuple(own), tuple(levels))
            if key not in known:
                known[key] = _from_zero(engine(len(vertices), own, levels))
            laid_out = known[key]
            if laid_out is None:
                return None
            piece = laid_out
            if end == last or _closed(
                piece, top is not None, dense[bottom] if bottom is not None else -1
            ):
                break
        anchor = 0 if top is not None or bottom is None else dense[bottom]
        shift = piece.x[anchor]
        for number, vertex in enumerate(vertices):
            if vertex != bottom or end == last:
                whole.x[vertex] = piece.x[number] - shift
                whole.rank[vertex] = start + piece.rank[number]
        if bottom is not None and end == last and top is not None:
            whole.x[bottom] = 0.0
        for (a, b), inner in piece.chains.items():
            whole.chains[vertices[a], vertices[b]] = [(x - shift, r + start) for x, r in inner]
        if bottom is not None:
            start += piece.rank[dense[bottom]]
        at = end
    return _from_zero(whole)


def _waists(
    held: Sequence[Sequence[int]], edges: Sequence[tuple[int, int]], ranks: Sequence[int]
) -> list[int]:
    """Return the ranks that hold one vertex and that no edge passes."""
    passing = [0] * (len(held) + 1)
    for a, b in edges:
        passing[ranks[a] + 1] += 1
        passing[ranks[b]] -= 1
    for rank in range(1, len(held)):
        passing[rank] += passing[rank - 1]
    return [
        rank for rank, held_here in enumerate(held) if len(held_here) == 1 and not passing[rank]
    ]


def _closed(piece: Layered, has_top: bool, bottom: int) -> bool:
    """Return whether nothing of the piece lies beside or beyond its waists."""
    taken = [*piece.rank, *(rank for inner in piece.chains.values() for _, rank in inner)]
    if has_top and (piece.rank[0] != 0 or taken.count(0) != 1):
        return False
    lowest = max(taken)
    return bottom < 0 or (piece.rank[bottom] == lowest and taken.count(lowest) == 1)


def _from_zero(placed: Layered | None) -> Layered | None:
    """Return the same with the leftmost vertex at 0 and the first rank 0."""
    if placed is None or not placed.x:
        return placed
    places = [(x, r) for inner in placed.chains.values() for x, r in inner]
    left = min(min(placed.x), min((x for x, _ in places), default=0.0))
    first = min(placed.rank)
    return Layered(
        x=[x - left for x in placed.x],
        rank=[rank - first for rank in placed.rank],
        chains={
            edge: [(x - left, rank - first) for x, rank in inner]
            for edge, inner in placed.chains.items()
        },
    )


def _order(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Returns a topological order, smallest number first; the smallest goes on at a cycle."""
    after: list[list[int]] = [[] for _ in range(count)]
    degree = [0] * count
    for a, b in edges:
        after[a].append(b)
        degree[b] += 1
    ready = [v for v in range(count) if degree[v] == 0]
    heapq.heapify(ready)
    done = [False] * count
    order: list[int] = []
    smallest = 0
    while len(order) < count:
        if not ready:
            while done[smallest]:
                smallest += 1
            ready.append(smallest)
        vertex = heapq.heappop(ready)
        if done[vertex]:
            continue
        done[vertex] = True
        order.append(vertex)
        for other in after[vertex]:
            degree[other] -= 1
            if degree[other] == 0 and not done[other]:
                heapq.heappush(ready, other)
    return order


def _ranks(count: int, order: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[int]:
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        before[b].append(a)
        after[a].append(b)
    ranks = [0] * count
    for vertex in order:
        if before[vertex]:
            ranks[vertex] = 1 + max(ranks[other] for other in before[vertex])
    for vertex in order:
        if not before[vertex] and after[vertex]:
            ranks[vertex] = min(ranks[other] for other in after[vertex]) - 1
    return ranks


def _fast(count: int, edges: Sequence[tuple[int, int]], ranks: Sequence[int]) -> Layered | None:
    """Lays a graph out by the Rust library ``fast_sugiyama``; None when it is not installed."""
    try:
        from fast_sugiyama import from_edges
    except ImportError:
        return None
    x = [0.0] * count
    rank = list(ranks)
    linked = sorted({v for edge in edges for v in edge})
    dense = {v: at for at, v in enumerate(linked)}
    chains: dict[tuple[int, int], list[tuple[float, int]]] = {}
    right = 0.0
    if edges:
        parts: Any = from_edges(
            [(dense[a], dense[b]) for a, b in edges],
            vertex_spacing=1.0,
            dummy_vertices=True,
            dummy_size=0.4,
            ranking_type="minimize",
        )
        places: dict[Any, tuple[float, int]] = {}
        onward: dict[Any, list[Any]] = {}
        for positions, _, _, part_edges in parts:
            own: list[Any] = [v for v, _ in positions if v < len(linked)]
            top = max(y for _, (_, y) in positions)
            left = min(px for _, (px, _) in positions)
            # Its own ranks count from its top; place it where longest paths put its first node.
            first = min(
                ranks[linked[v]] - round(top - y)
                for v, (_, y) in positions
                if v < len(linked)  # type: ignore[index,operator]
            )
            for v, (px, y) in positions:
                places[v] = (px - left + right, round(top - y) + first)
            for a, b in part_edges or ():
                onward.setdefault(a, []).append(b)
            right += max(px for _, (px, _) in positions) - left + 1.2
            for v in own:
                x[linked[v]], rank[linked[v]] = places[v]
        for v in range(len(linked)):
            for step in onward.get(v, ()):
                inner: list[tuple[float, int]] = []
                at = step
                while at >= len(linked):
                    inner.append(places[at])
                    at = onward[at][0]
                chains[linked[v], linked[at]] = inner
    lonely: dict[int, int] = {}
    for v in range(count):
        if v not in dense:
            x[v] = right + lonely.get(rank[v], 0)
            lonely[rank[v]] = lonely.get(rank[v], 0) + 1
    return Layered(x=x, rank=rank, chains=chains)
