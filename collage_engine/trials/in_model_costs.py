"""What a partition takes within a whole model, learnt from covers that were run and profiled.

Timed in isolation and repeated at once, a partition finds its weights, its code and its page tables
in the nearest cache; within a model everything else ran in between. Measured on two cores of an AMD
Zen 4, one thread: MobileNetV2's partitions take 1.1 to 1.3 times as long there, a small call of
an external runtime 5 µs instead of 1.5, a matrix product whose 5 MB of weights come from memory
four times as long. Isolated costs favour covers of many small calls, wrongly.

The time above the isolated one is modelled per toolchain as

    (1 − share) · (call + relative · isolated + per_weight · weights + per_value · values)

with coefficients of at least nothing, fitted to the partitions of the covers that were run.
``share`` is the candidate's share of the whole run: nothing runs between two calls of the whole
model, and it takes what it takes in isolation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import OperatorNumber, operator_set

FLOOR_US = 5.0
"""Errors of shorter partitions, in µs, count no more than those of one that takes this long: what a
small call of an external runtime takes within a model (measured, see above)."""
LEAST_OBSERVATIONS = 4
"""A toolchain observed in fewer partitions is described as all of them together: as many as there
are coefficients."""


@dataclass(frozen=True, kw_only=True)
class PartitionWork:
    """What the time of a partition within a model depends on."""

    toolchain: str
    isolated_us: float
    """Its isolated cost in microseconds."""
    weight_bytes: int
    value_bytes: int
    """Bytes of the inputs and outputs that cross the border."""
    share: float
    """Its share of the time of the whole run, at most 1."""


@dataclass(frozen=True)
class InModelCosts:
    """The fitted coefficients of the model that this module's docstring describes."""

    toolchains: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Per toolchain: µs a call, and the share of its isolated time that is added; by the empty name
    those of a toolchain with too few observations."""
    per_weight: float = 0.0
    """µs per byte of weights."""
    per_value: float = 0.0
    """µs per byte across the border."""

    def added_us(self, work: PartitionWork) -> float:
        """Return what a partition takes more than in isolation, in µs: at least nothing."""
        call, relative = self.toolchains.get(work.toolchain, self.toolchains[""])
        added = call + relative * work.isolated_us
        added += self.per_weight * work.weight_bytes + self.per_value * work.value_bytes
        return (1.0 - work.share) * added


def fit(observed: Sequence[tuple[PartitionWork, float]]) -> InModelCosts:
    """Return the coefficients that explain best what was observed.

    Errors count relative to each partition's time. A toolchain with fewer than
    ``LEAST_OBSERVATIONS`` partitions has the coefficients of all toolchains together.

    Args:
        observed: Partitions, with the microseconds that each took within a whole model; at least
            one.
    """
    counts = Counter(work.toolchain for work, _ in observed)
    names = sorted(name for name, count in counts.items() if count >= LEAST_OBSERVATIONS)
    together = _solve(observed, [""])
    separate = _solve(observed, [*names, ""])
    rare = {"": together.toolchains[""]}
    return replace(separate, toolchains=separate.toolchains | rare)


def _solve(observed: Sequence[tuple[PartitionWork, float]], names: Sequence[str]) -> InModelCosts:
    """Fit the coefficients of some toolchains at once, by non-negative least squares.

    Args:
        observed: Partitions with their microseconds within a whole model; at least one.
        names: The toolchains; the last name stands for all that are not named.
    """
    from scipy.optimize import nnls  # takes 0.5 s to import

    column = {name: at for at, name in enumerate(names)}
    rows = np.zeros((len(observed), 2 * len(names) + 2))
    wanted = np.empty(len(observed))
    for row, (work, in_model_us) in enumerate(observed):
        at = 2 * column.get(work.toolchain, len(names) - 1)
        rest = (1.0 - work.share) / max(FLOOR_US, work.isolated_us)
        rows[row, at : at + 2] = rest, rest * work.isolated_us
        rows[row, -2:] = rest * work.weight_bytes, rest * work.value_bytes
        wanted[row] = (in_model_us - work.isolated_us) / max(FLOOR_US, work.isolated_us)
    # Bytes are large numbers beside calls: each column is solved at its own scale.
    scale = np.maximum(np.abs(rows).max(axis=0), np.finfo(float).tiny)
    solution = nnls(rows / scale, wanted)[0] / scale
    return InModelCosts(
        toolchains={
            name: (float(solution[2 * at]), float(solution[2 * at + 1]))
            for name, at in column.items()
        },
        per_weight=float(solution[-2]),
        per_value=float(solution[-1]),
    )


def moved_bytes(graph: DataflowGraph, operators: Iterable[int]) -> tuple[int, int]:
    """Return the bytes of a partition's weights, and those of the values across its border.

    Args:
        graph: The model's graph.
        operators: The operator numbers of the partition.
    """
    inside = operator_set(map(OperatorNumber, operators))
    inputs, outputs = graph.boundary(inside)
    weights = sum(graph.values[i].type.bytes for i in graph.constants_of(inside))
    return weights, sum(graph.values[i].type.bytes for i in (*inputs, *outputs))
