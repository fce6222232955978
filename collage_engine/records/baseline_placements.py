"""Makes placements of baselines, so that they can be shown and compared like any other."""

from __future__ import annotations

from collections.abc import Mapping

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
        document does not know what it runs.
    """
    if baseline.measured_us is None:
        return None
    chosen = [candidates.get(name) for name in baseline.candidates]
    partitions = [_of_candidate(place, c) for place, c in enumerate(filter(None, chosen))]
    held = sorted(node for part in partitions for node in part.nodes)
    if None in chosen or held != list(range(operators)):
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
