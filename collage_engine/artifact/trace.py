"""A run of an artifact as a trace in Chrome's format, which Perfetto opens.

It has a track for each toolchain, with a slice for each partition and, inside, one for each of its
kernels; a track for what the virtual machine does between partitions; and an arrow wherever a
partition reads what another one made. Together the slices of partitions and of what is between them
fill the run without gaps. The format is described in "Trace Event Format" (Google, 2016): complete
events (X), flows (s, f) and metadata (M), in microseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collage_engine.artifact.artifact_run import TraceCalls, artifact_process, open_artifact
from collage_engine.artifact.paired_times import timed_manifest
from collage_engine.lowering.built import BOOKKEEPING, Kernel, kernels_of_calls
from collage_engine.support.errors import UsageError
from collage_engine.support.time_limits import ANSWER_S
from collage_engine.toolchains.registry import about, all_names

TRACE_RUN, TRACE_BETWEEN = "run", "between partitions"
"""Names of the tracks of the whole run, and of what lies between partitions."""
RUNS = 3
"""Runs of which the median one is shown: the fewest that have one between two others."""
PROCESS = 1
"""Number of the process in the trace, which has one."""


class _Call(NamedTuple):
    """A call of the virtual machine, in microseconds from the run's begin."""

    name: str
    begin: float
    end: float
    part: int | None
    """The partition that it belongs to; None: none."""


Placement = Mapping[str, Any]
"""The placement in a manifest: ``partitions``, ``kernels`` and ``hand_overs``."""


def trace_artifact(folder: Path) -> dict[str, Any]:
    """Run an artifact on its sample in a process of its own, and return a trace of one run.

    Noting the times adds a quarter of a microsecond to every kernel.

    Raises:
        ArtifactError: The folder is damaged.
        UsageError: It is for several shapes, for throughput, or for another device.
        WorkerError: The process crashed or hung.
    """
    manifest = timed_manifest(folder)
    if manifest.get("device", "cpu") != "cpu":
        raise UsageError(f"{folder} runs on a device, where calls return before their work is done")
    with artifact_process(manifest) as worker:
        open_artifact(worker, folder)
        names, moments = worker.call(TraceCalls(RUNS), 2 * ANSWER_S)
    median = sorted(moments, key=lambda run: run[-1] - run[0])[len(moments) // 2]
    return trace_of(manifest["placement"], manifest["model"]["name"], names, median)


def trace_of(
    placement: Placement, title: str, names: Sequence[str], moments: Sequence[int]
) -> dict[str, Any]:
    """Return the trace of a run.

    Args:
        placement: Partitions in the order in which they run, their kernels, and which reads what.
        title: What the process is called.
        names: What the virtual machine called, in order.
        moments: As ``stamp_kernels`` returns them for a run.
    """
    times = [(moment - moments[0]) / 1000 for moment in moments]
    spans = list(zip(times[1:-1:2], times[2:-1:2], strict=True))
    partitions = placement["partitions"]
    owners = kernels_of_calls([Kernel(name=n, part=p) for n, p in placement["kernels"]], names)
    calls = [
        _Call(name, *span, owner.part if owner is not None else None)
        for name, span, owner in zip(names, spans, owners, strict=True)
        if owner is not None or not name.startswith(BOOKKEEPING)
    ]
    toolchains = dict.fromkeys(part["toolchain"] for part in partitions)
    tracks = {name: n for n, name in enumerate([TRACE_RUN, *toolchains, TRACE_BETWEEN], start=1)}
    between = tracks[TRACE_BETWEEN]
    events = [_slice(title, tracks[TRACE_RUN], 0.0, times[-1])]
    shown: dict[int, list[_Call]] = {}
    """The kernels of each partition."""
    at = 0.0
    for owner, group in itertools.groupby(calls, key=lambda call: call.part):
        inside = list(group)
        track = between
        if owner is not None:
            part = partitions[owner]
            track, begin, end = tracks[part["toolchain"]], inside[0].begin, inside[-1].end
            names_of_part = part.get("onnx_nodes", ())
            nodes = {"nodes": ", ".join(names_of_part), "estimated_us": part.get("estimated_us")}
            ends = " … ".join(dict.fromkeys((*names_of_part[:1], *names_of_part[-1:])))
            events.append(_slice(TRACE_BETWEEN, between, at, begin))
            events.append(_slice(f"{part['id']} {ends}".strip(), track, begin, end, nodes))
            shown.setdefault(owner, []).extend(inside)
            at = end
        events += [_slice(call.name, track, call.begin, call.end) for call in inside]
    events.append(_slice(TRACE_BETWEEN, between, at, times[-1]))
    for number, (source, target) in enumerate(placement["hand_overs"]):
        if source not in shown or target not in shown:
            continue  # all that it did was folded into views
        # An arrow belongs to the slices in which its ends lie.
        moments_of_ends = (
            ("s", source, shown[source][-1].begin),
            ("f", target, shown[target][0].begin),
        )
        for phase, owner, moment in moments_of_ends:
            track = tracks[partitions[owner]["toolchain"]]
            arrow = {"ph": phase, "name": "value", "cat": "hand-over", "id": number, "bp": "e"}
            events.append(arrow | {"pid": PROCESS, "tid": track, "ts": moment})
    titles = {name: about(name).title for name in toolchains if name in all_names()}
    names_of_tracks = [
        {"ph": "M", "name": f"thread_{key}", "pid": PROCESS, "tid": number, "args": {key: value}}
        for name, number in tracks.items()
        for key, value in (("name", titles.get(name, name)), ("sort_index", number))
    ]
    process = {"ph": "M", "name": "process_name", "pid": PROCESS, "args": {"name": title}}
    return {"traceEvents": [process, *names_of_tracks, *events], "displayTimeUnit": "ns"}


def _slice(
    name: str, track: int, begin: float, end: float, about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a complete event; times are in microseconds."""
    event = {"ph": "X", "name": name, "pid": PROCESS, "tid": track, "ts": begin, "dur": end - begin}
    return event | ({"args": dict(about)} if about else {})
