"""Traces of a run: tracks without gaps, kernels inside partitions, arrows from maker to reader."""

from __future__ import annotations

import itertools
from typing import Any

from collage_engine.artifact.trace import traced
from collage_engine.drawing.trace import TRACE_BETWEEN, TRACE_RUN, trace_of
from collage_engine.toolchains.registry import title_of

PLACEMENT: dict[str, Any] = {
    "partitions": [
        {"id": "p0", "toolchain": "tvm", "onnx_nodes": ["conv", "relu"], "estimated_us": 9.0},
        {"id": "p1", "toolchain": "onednn"},
        {"id": "p2", "toolchain": "tvm"},
    ],
    "kernels": [["conv", 0], ["reshape", 0], ["relu", 0], ["p1_onednn", 1], ["conv", 2]],
    "hand_overs": [[0, 1], [0, 2], [1, 2]],
}
NAMES = ["vm.builtin.alloc_tensor", "conv", "relu", "cast", "p1_onednn", "conv"]
"""The reshape became a view, and a conversion was put in."""
MOMENTS = [1000, 1100, 1200, 2000, 5000, 5100, 6000, 7000, 7500, 8000, 9000, 9500, 9900, 10000]


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
    placement = traced(PLACEMENT, NAMES, MOMENTS)
    return trace_of(placement, PLACEMENT["hand_overs"], "net.onnx", title_of)


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
