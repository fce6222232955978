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
from dataclasses import dataclass, field

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members
from collage_engine.records.numbering import OperatorNumber

FLOOR_US = 5.0
"""Errors of shorter partitions, in µs, count no more than those of one that takes this long;
chosen, a few times what a call of an external runtime takes."""
OUTLIER_FACTOR = 2.0
"""Errors of more than this many times the median error count in proportion, not squared: a sample
of a slow moment teaches little; chosen."""
LEAST_ERROR = 1e-3
"""Relative error that the median error is taken to be at least; chosen."""
LEAST_OBSERVATIONS = 4
"""A toolchain observed in fewer partitions is described as all of them together; chosen."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A partition as it was measured within a whole model; times in µs."""

    toolchain: str
    isolated_us: float
    in_model_us: float
    weight_bytes: int
    value_bytes: int
    """Bytes of the inputs and outputs that cross the border."""
    share: float
    """The partition's share of the time of the whole run."""


@dataclass(frozen=True)
class InModelCosts:
    """The fitted coefficients of the model that this module's docstring describes."""

    toolchains: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Per toolchain: µs a call, and the share of its isolated time that is added."""
    others: tuple[float, float] = (0.0, 0.0)
    """The same for a toolchain with too few observations."""
    per_weight: float = 0.0
    """µs per byte of weights."""
    per_value: float = 0.0
    """µs per byte across the border."""

    def added_us(
        self, toolchain: str, isolated_us: float, weight_bytes: int, value_bytes: int, share: float
    ) -> float:
        """Return what a partition takes more than in isolation, in µs: at least nothing."""
        call, relative = self.toolchains.get(toolchain, self.others)
        added = call + relative * isolated_us
        added += self.per_weight * weight_bytes + self.per_value * value_bytes
        return max(0.0, 1.0 - share) * added


def fit(observations: Iterable[Observation]) -> InModelCosts:
    """Return the coefficients that explain best what was observed.

    Errors count relative to each partition's time. A toolchain with fewer than
    ``LEAST_OBSERVATIONS`` partitions has the coefficients of all toolchains together.

    Args:
        observations: Partitions as they were measured within whole models.
    """
    observed = list(observations)
    if not observed:
        return InModelCosts()
    counts = Counter(one.toolchain for one in observed)
    known = sorted(name for name, count in counts.items() if count >= LEAST_OBSERVATIONS)
    pooled = _solve(observed, ("",))
    separate = _solve(observed, (*known, "")) if known else pooled
    return InModelCosts(
        toolchains={name: separate.toolchains[name] for name in known},
        others=pooled.toolchains[""],
        per_weight=separate.per_weight,
        per_value=separate.per_value,
    )


def _solve(observed: Sequence[Observation], names: tuple[str, ...]) -> InModelCosts:
    """Fit the coefficients of some toolchains at once.

    Args:
        observed: Partitions as they were measured within whole models; at least one.
        names: The toolchains; the last name stands for all that are not named.
    """
    place = {name: at for at, name in enumerate(names)}
    rows = np.zeros((len(observed), 2 * len(names) + 2))
    wanted = np.empty(len(observed))
    for row, one in enumerate(observed):
        at = 2 * place.get(one.toolchain, len(names) - 1)
        rest = max(0.0, 1.0 - one.share)
        rows[row, at : at + 2] = rest, rest * one.isolated_us
        rows[row, -2:] = rest * one.weight_bytes, rest * one.value_bytes
        relative = 1.0 / max(FLOOR_US, one.isolated_us)
        rows[row] *= relative
        wanted[row] = (one.in_model_us - one.isolated_us) * relative
    found = robust_nonnegative(rows, wanted)
    return InModelCosts(
        toolchains={
            name: (float(found[2 * at]), float(found[2 * at + 1])) for name, at in place.items()
        },
        per_weight=float(found[-2]),
        per_value=float(found[-1]),
    )


def robust_nonnegative(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the non-negative x for which ``rows · x`` is near ``wanted``, in spite of outliers.

    Non-negative least squares (``scipy.optimize.nnls``) say how large errors usually are; least
    squares whose loss grows in proportion beyond that (``soft_l1`` of
    ``scipy.optimize.least_squares``) start from there.

    Args:
        rows: Of shape (observations, coefficients).
        wanted: Of shape (observations,), relative times.

    Returns:
        The coefficients, of shape (coefficients,); that of a column of zeros is 0.
    """
    from scipy.optimize import least_squares, nnls  # takes 0.5 s to import

    size = np.sqrt((rows**2).sum(axis=0))
    used = np.flatnonzero(size > 0)
    found = np.zeros(rows.shape[1])
    if not len(used):
        return found
    columns = rows[:, used] / size[used]
    start, _ = nnls(columns, wanted)
    typical = max(float(np.median(np.abs(columns @ start - wanted))), LEAST_ERROR)
    robust = least_squares(
        lambda x: columns @ x - wanted,
        start,
        jac=lambda x: columns,
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=OUTLIER_FACTOR * typical,
    )
    found[used] = robust.x / size[used]
    return found


def moved_bytes(graph: DataflowGraph, operators: Iterable[int]) -> tuple[int, int]:
    """Return the bytes of a partition's weights, and those of the values across its border.

    Args:
        graph: The model's graph.
        operators: The operator numbers of the partition.
    """
    nodes = graph.close(graph.to_indices(map(OperatorNumber, operators)))
    inputs, outputs = graph.boundary(nodes)

    def size(index: int) -> int:
        return sum(kind.bytes for kind in graph.nodes[index].types)

    weights = sum(size(i) for i in members(nodes) if graph.nodes[i].form == "constant")
    return weights, sum(map(size, inputs)) + sum(map(size, outputs))
