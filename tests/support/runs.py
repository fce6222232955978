"""Runs with made-up figures: a test names only those that it is about."""

from __future__ import annotations

from typing import Any

from collage_engine.records.placement import CandidateCounts, Partition, Run


def run_record(**fields: Any) -> Run:
    """Make a run of one thread that exports its own placement, of which nothing else is known."""
    given: dict[str, Any] = {
        "id": "r1",
        "name": "",
        "model": {},
        "target": "cpu",
        "threads": 1,
        "toolchains": [],
        "candidates": CandidateCounts(),
        "placement": None,
        "baselines": [],
        "winner": "collage",
        "pins": [],
        "max_abs_error": None,
        "max_rel_error": None,
        "seconds": {},
    }
    return Run(**given | fields)


def partition(
    *nodes: int, toolchain: str = "onednn", us: float | None = None, **more: Any
) -> Partition:
    """Make a partition of these operators with the cost that it is estimated to have."""
    given: dict[str, Any] = {"id": "p0", "candidate": "c", "config": {}, "onnx_nodes": ()}
    return Partition(toolchain=toolchain, nodes=nodes, estimated_us=us, **given | more)
