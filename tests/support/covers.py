"""Makes covers for tests that need no enumeration, of an instance and operators."""

from __future__ import annotations

from collections.abc import Iterable

from collage_engine.partition.candidate import candidate_id
from collage_engine.records.candidate import Candidate
from collage_engine.records.format import Formats
from collage_engine.records.graph import OperatorNumber
from collage_engine.records.toolchain import ToolchainInstance


def candidate_on(
    instance: ToolchainInstance,
    operators: Iterable[int],
    takes: Formats | None = None,
    gives: Formats | None = None,
) -> Candidate:
    """Returns a candidate without a label, a rule and a key."""
    nodes = tuple(map(OperatorNumber, operators))
    return Candidate(
        id=candidate_id(instance, nodes, takes, gives),
        instance=instance,
        nodes=nodes,
        label="",
        device=instance.device,
        takes=dict(takes or {}),
        gives=dict(gives or {}),
    )
