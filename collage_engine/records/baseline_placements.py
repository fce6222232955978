"""Makes placements of baselines, so that they can be shown and compared like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.placement import Baseline, Partition, Placement


def baseline_placement(
    baseline: Baseline, candidates: Mapping[str, CandidateRecord], operators: int
) -> Placement | None:
    """Make the placement of a baseline from the candidates of the document.

    Args:
        baseline: A baseline of a run.
        candidates: Candidate id → candidate.
        operators: How many operators the model has.

    Returns:
        The placement with the baseline's times. None where the baseline has no time, or where the
        document does not know what it runs: sessions of older versions name only the toolchain of
        a whole-model baseline.
    """
    if baseline.measured_us is None:
        return None
    chosen = [candidates.get(name) for name in baseline.candidates]
    if chosen and None not in chosen:
        partitions = [_of_candidate(place, c) for place, c in enumerate(filter(None, chosen))]
    elif baseline.kind == "whole-model":
        partitions = [_whole_model(baseline.name, operators)]
    else:
        return None
    held = sorted(node for part in partitions for node in part.nodes)
    if held != list(range(operators)):
        return None
    return Placement(
        partitions=tuple(partitions),
        estimated_us=baseline.estimated_us,
        measured_us=baseline.measured_us,
        spread_us=baseline.spread_us,
    )


def _of_candidate(place: int, candidate: CandidateRecord) -> Partition:
    return Partition(
        id=f"p{place}",
        candidate=candidate.id,
        toolchain=candidate.instance.toolchain,
        config=dict(candidate.instance.config),
        nodes=candidate.nodes,
        onnx_nodes=(),
        estimated_us=candidate.cost.median_us if candidate.cost.usable else None,
        takes=candidate.takes,
        gives=candidate.gives,
        precision=candidate.instance.precision,
        device=candidate.instance.device,
    )


def _whole_model(instance: str, operators: int) -> Partition:
    """Return one partition of all operators on an instance like ``openvino[precision=bf16]``."""
    toolchain, _, config = instance.rstrip("]").partition("[")
    return Partition(
        id="p0",
        candidate="",
        toolchain=toolchain,
        config=dict(_pairs(config.split(","))) if config else {},
        nodes=tuple(range(operators)),
        onnx_nodes=(),
        estimated_us=None,
    )


def _pairs(settings: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (each.partition("=") for each in settings)]
