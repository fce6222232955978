"""Finds the partitions of a placement that another toolchain would run as fast."""

from __future__ import annotations

from collections.abc import Iterable

from collage_engine.records.cost import Cost
from collage_engine.records.placement import Placement
from collage_gui.document.cost_table import CostTable


def tied_partitions(
    placement: Placement | None, costs: CostTable, named: Iterable[str] = ()
) -> dict[str, str]:
    """Finds partitions whose toolchain is tied with another one on the same operators.

    A toolchain is tied when choosing it would lose less than the spreads of both costs, as the
    engine judges ties, or when the engine names it. Of several, the one that loses least counts.

    Args:
        placement: The placement; None has no partitions.
        costs: Costs and regrets of the candidates.
        named: Ids of candidates that the engine says are tied.

    Returns:
        Partition id → toolchain.
    """
    if placement is None:
        return {}
    named = set(named)
    wanted = {p.nodes: p for p in placement.partitions}
    ties: dict[str, tuple[float, str]] = {}
    for other in costs.candidates.values():
        partition = wanted.get(other.nodes)
        toolchain = other.instance.toolchain
        if partition is None or toolchain == partition.toolchain:
            continue
        if other.id in costs.regrets and costs.regrets[other.id] is None:
            continue  # no valid placement contains it, e.g. because of a pin
        chosen_cost, other_cost = costs.of(partition.candidate), costs.of(other.id)
        loss = _loss(chosen_cost, other_cost, costs.regrets.get(other.id))
        if loss is None:
            continue
        if other.id in named or loss <= _joint_spread(chosen_cost, other_cost):
            ties[partition.id] = min(ties.get(partition.id, (loss, toolchain)), (loss, toolchain))
    return {partition: toolchain for partition, (_, toolchain) in ties.items()}


def _loss(chosen: Cost, other: Cost, regret: float | None) -> float | None:
    """Returns what choosing ``other`` would lose, in µs: its regret, else the costs' difference."""
    if chosen.median_us is None or other.median_us is None:
        return None
    if not (chosen.usable and other.usable):
        return None
    return regret if regret is not None else abs(other.median_us - chosen.median_us)


def _joint_spread(one: Cost, other: Cost) -> float:
    """Returns how far the spreads of two costs reach towards each other, in µs."""
    low, high = (one, other) if one.us <= other.us else (other, one)
    return (low.high_us or low.us) - low.us + high.us - (high.low_us or high.us)
