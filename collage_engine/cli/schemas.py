"""The JSON schemas of what ``--json`` prints, which ``--schema`` prints for each command."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import msgspec

from collage_engine.artifact.artifact_run import ArtifactResult, EntryResults
from collage_engine.cli.print_run import NOT_PRINTED
from collage_engine.records.answers import Comparison, ExplainAnswer, Gate
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.graph import ModelRecord
from collage_engine.records.placement import Diagnosis, Run
from collage_engine.records.shapes import ShapeRow, Sharing
from collage_engine.records.toolchain import ToolchainState
from collage_engine.run.conformance.run import Finding
from collage_engine.search import problem_json as search
from collage_engine.store.store import StoreInfo


class ShapeWithGain(ShapeRow, frozen=True, kw_only=True):
    """A shape that was placed beside others, with its gain."""

    gain: float | None
    """The best single toolchain's latency over this one's."""


class ShapesDocument(TypedDict):
    """What is printed of a model that was placed for several shapes."""

    shapes: list[ShapeWithGain]
    artifact: str | None
    sharing: Sharing | None
    sessions: list[str]
    runs: list[Run]


class FarmDocument(TypedDict):
    """What is printed of several models or shapes that were placed on a farm, by name."""

    runs: dict[str, Run]
    failed: dict[str, str]


class ConflictRecord(TypedDict):
    """Pins and limits that cannot hold together, or nodes that nothing takes."""

    reason: str
    pins: list[str]
    pin_indices: list[int]
    nodes: list[int]
    constraints: list[str]
    onnx_nodes: list[str]
    further: NotRequired[list[ConflictRecord]]


class InfeasibleDocument(TypedDict):
    """What is printed where there is no placement."""

    infeasible: ConflictRecord


class ToolchainsDocument(TypedDict):
    """What is printed of this machine's toolchains."""

    toolchains: list[ToolchainState]


class CheckDocument(TypedDict):
    """What the checks of a toolchain found; ``not_made`` are those that were left out."""

    toolchain: str
    findings: list[Finding]
    not_made: list[str]


class ChecksDocument(TypedDict):
    """What is printed where several toolchains were checked."""

    checked: list[CheckDocument]


class CandidatesDocument(TypedDict):
    """What is printed of a model's candidate partitions."""

    model: ModelRecord
    candidates: list[CandidateRecord]


DOCUMENTS: dict[str, dict[str, Any]] = {
    "place": {
        "run": Run,
        "shapes": ShapesDocument,
        "farm": FarmDocument,
        "infeasible": InfeasibleDocument,
    },
    "toolchains": {
        "list": ToolchainsDocument,
        "check": CheckDocument,
        "several checks": ChecksDocument,
    },
    "candidates": {"candidates": CandidatesDocument},
    "explain": {"explanation": ExplainAnswer},
    "compare": {"comparison": Comparison},
    "diagnose": {"diagnosis": Diagnosis},
    "run": {"result": ArtifactResult, "several shapes": EntryResults},
    "check": {"gate": Gate},
    "search": search.DOCUMENTS,
    "store": {"info": StoreInfo},
}
"""By command the type of each document that it prints or reads, by the name of the document."""


def schemas(command: str) -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of a command's documents, by the documents' names."""
    by_name = {name: msgspec.json.schema(kind) for name, kind in DOCUMENTS[command].items()}
    for schema in by_name.values():
        for name in NOT_PRINTED if "Run" in schema.get("$defs", ()) else ():
            del schema["$defs"]["Run"]["properties"][name]
    return by_name
