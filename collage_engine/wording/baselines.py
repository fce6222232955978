"""Names the baselines as every face shows them: the command line, reports and the desktop."""

from __future__ import annotations

from typing import Literal

from collage_engine.records.placement import Baseline, BaselineKind
from collage_engine.wording.toolchains import toolchain_title


def baseline_title(baseline: Baseline) -> str:
    """Return what a baseline is called: ``ONNX Runtime only``, ``greedy oneDNN → TVM``."""
    return contender_title(baseline.name, baseline.kind)


def contender_title(name: str, kind: BaselineKind | Literal["collage"]) -> str:
    """Return what a baseline or a placement of the search is called while a run tries it.

    Args:
        name: The name that the run gives it, with the toolchain's own name in it.
        kind: What kind of baseline it is, or ``collage``.
    """
    title = " ".join(toolchain_title(word) for word in name.split())
    if kind == "collage":
        return "Collage" if name == kind else title
    if kind == "whole-model":
        return f"{toolchain_title(name)} only"
    if kind == "fuseops":
        return title
    if kind == "user":
        return f"own placement {title}" if "placement" not in title else title
    return title if title.startswith("greedy") else f"greedy {title}"
