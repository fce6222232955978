"""A run of a placement as a trace in Chrome's format, which Perfetto opens.

It has a track for each toolchain, with a slice for each partition and, inside, one for each of its
layers; a track for what lies between partitions; and an arrow wherever a partition reads what
another one made. Together the slices of partitions and of what is between them fill the run without
gaps. The format is described in "Trace Event Format" (Google, 2016): complete events (X), flows
(s, f) and metadata (M), in microseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from collage_engine.records.placement import Placement
from collage_engine.wording.layers import Span, spans
from collage_engine.wording.titles import toolchain_title

TRACE_RUN, TRACE_BETWEEN = "run", "between partitions"
"""Names of the tracks of the whole run, and of what lies between partitions."""
PROCESS = 1
"""Number of the process in the trace, which has one."""


def trace_of(
    placement: Placement,
    transitions: Iterable[tuple[int, int]],
    title: str,
    toolchain: Callable[[str], str] = toolchain_title,
) -> dict[str, Any]:
    """Return the trace of a run.

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
