"""What baselines are called on every face: the command line, reports and the desktop."""

from __future__ import annotations

from collage_engine.drawing.palette import toolchain_title
from collage_engine.records.placement import Baseline


def baseline_title(baseline: Baseline) -> str:
    """Return what a baseline is called: ``ONNX Runtime only``, ``greedy oneDNN → TVM``."""
    name = " ".join(toolchain_title(word) for word in baseline.name.split())
    if baseline.kind == "whole-model":
        return f"{toolchain_title(baseline.name)} only"
    if baseline.kind == "fuseops":
        return name
    if baseline.kind == "user":
        return f"own placement {name}" if "placement" not in name else name
    return name if name.startswith("greedy") else f"greedy {name}"
