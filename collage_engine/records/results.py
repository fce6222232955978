"""The process of the run hands these plain records back; they travel between processes."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.placement import Run
from collage_engine.records.refusal import Refusal
from collage_engine.records.toolchain import ToolchainState


@dataclass(frozen=True)
class Opened:
    """A model that was imported."""

    model: ModelRecord
    graph: GraphRecord
    seconds: float


@dataclass(frozen=True)
class RunUpdate:
    """News of a run, sent while it goes on, so that a cancelled run keeps its candidates.

    A field that is None has no news; the last update of a run holds its document.
    """

    candidates: list[CandidateRecord] | None = None
    without_candidates: dict[str, dict[int, Refusal]] | None = None
    constants: dict[str, float] | None = None
    run: Run | None = None
    toolchains: list[ToolchainState] | None = None
