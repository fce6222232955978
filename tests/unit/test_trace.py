"""Traces of a run: tracks without gaps, kernels inside partitions, arrows from maker to reader."""

from __future__ import annotations

import itertools
from typing import Any

from collage_engine.drawing.timeline import TRACE_BETWEEN, TRACE_RUN, trace_of
from collage_engine.records.placement import LayerTime, Partition, Placement
from collage_engine.support.typed import convert
from collage_engine.toolchains.registry import title_of

PARTS = (
    {"id": "p0", "toolchain": "tvm", "onnx_nodes": ["conv", "relu"], "estimated_us": 9.0},
    {"id": "p1", "toolchain": "onednn", "onnx_nodes": [], "estimated_us": None},
    {"id": "p2", "toolchain": "tvm", "onnx_nodes": [], "estimated_us": None},
)
LAYERS = (
    LayerTime(name="conv", us=3.0, gap_us=1.0, partition=0),
    LayerTime(name="relu", us=0.9, gap_us=0.1, partition=0),
    LayerTime(name="cast", us=0.5, gap_us=1.0),
    LayerTime(name="p1_onednn", us=1.0, gap_us=0.5, partition=1),
    LayerTime(name="conv", us=0.4, gap_us=0.5, partition=2),
)
"""A conversion was put in between two partitions."""


def slices(trace: dict[str, Any], track: str) -> list[tuple[str, float, float]]:
    (number,) = (
        event["tid"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name" and event["args"]["name"] == track
    )
    return [
        (e["name"], e["ts"], e["ts"] + e["dur"])
        for e in trace["traceEvents"]
        if e["ph"] == "X" and e["tid"] == number
    ]


def traced_run() -> dict[str, Any]:
    about: Any = {"candidate": "", "config": {}, "nodes": []}
    parts = tuple(convert({**about, **part}, Partition, json=True) for part in PARTS)
    placement = Placement(partitions=parts, estimated_us=None, measured_us=9.0, layers=LAYERS)
    return trace_of(placement, [(0, 1), (0, 2), (1, 2)], "net.onnx", title_of)


def test_partitions_and_what_is_between_fill_the_run():
    trace = traced_run()
    assert slices(trace, TRACE_RUN) == [("net.onnx", 0.0, 9.0)]
    tvm, onednn = slices(trace, "TVM"), slices(trace, "oneDNN")
    assert tvm == [
        ("p0 conv … relu", 1.0, 5.0),
        ("conv", 1.0, 4.0),
        ("relu", 4.1, 5.0),
        ("p2", 8.5, 8.9),
        ("conv", 8.5, 8.9),
    ]
    assert onednn == [("p1", 7.0, 8.0), ("p1_onednn", 7.0, 8.0)]
    between = slices(trace, TRACE_BETWEEN)
    assert ("cast", 6.0, 6.5) in between
    shown = (*tvm, *onednn, *between)
    whole = sorted(
        each[1:] for each in shown if each[0] in ("p0 conv … relu", "p1", "p2", TRACE_BETWEEN)
    )
    assert whole[0][0] == 0.0 and whole[-1][1] == 9.0
    assert all(one[1] == other[0] for one, other in itertools.pairwise(whole))
