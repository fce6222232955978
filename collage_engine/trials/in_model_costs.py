"""What a partition takes within a whole model, learnt from covers that were run and looked into.

Timed alone and repeated at once, a partition finds its weights, its code and its page tables in
the nearest cache; within a model everything else ran in between. Measured on two cores of an AMD
Zen 4, one thread: MobileNetV2's partitions take 1.1 to 1.3 times as long there, a small call of
an external runtime 5 µs instead of 1.5, a matrix product whose 5 MB of weights come from memory
four times as long. Costs alone favour covers of many small calls, wrongly.

The time above that alone is modelled per toolchain as

    (1 − share) · (call + relative · alone + per_weight · weights + per_value · values)

with coefficients of at least nothing, fitted to the partitions of the covers that were run.
``share`` is the candidate's share of the whole run: nothing runs between two calls of the whole
model, and it takes what it takes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members
from collage_engine.records.numbering import OperatorNumber

FLOOR_US = 5.0
"""Errors of partitions shorter than this count no more than theirs would."""
SWEEPS = 200
"""Of coordinate descent; some ten coefficients settle in fewer."""
REWEIGHTED = 4
"""Turns in which what fits badly gets less weight: a sample of a slow moment teaches little."""
FEW = 4
"""A toolchain seen in fewer partitions than this is described as all of them together."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A partition as it was seen within a whole model; times in µs."""

    toolchain: str
    alone_us: float
    in_place_us: float
    weight_bytes: int
    value_bytes: int
    """Inputs and outputs across the border."""
    share: float
    """Of the whole run."""


@dataclass(frozen=True)
class InPlace:
    """The fitted model."""

    toolchains: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Per toolchain: µs a call, and the share of its time alone that is added."""
    others: tuple[float, float] = (0.0, 0.0)
    """The same for a toolchain that was hardly seen."""
    per_weight: float = 0.0
    """µs per byte of weights."""
    per_value: float = 0.0
    """µs per byte across the border."""

    def added_us(
        self, toolchain: str, alone_us: float, weight_bytes: int, value_bytes: int, share: float
    ) -> float:
        """What a partition takes more than alone, at least nothing."""
        call, relative = self.toolchains.get(toolchain, self.others)
        added = call + relative * alone_us
        added += self.per_weight * weight_bytes + self.per_value * value_bytes
        return max(0.0, 1.0 - share) * added


def fit(seen: Sequence[Seen]) -> InPlace:
    """The coefficients that explain best what was seen, relative to each partition's time."""
    if not seen:
        return InPlace()
    counts: dict[str, int] = {}
    for one in seen:
        counts[one.toolchain] = counts.get(one.toolchain, 0) + 1
    known = sorted(name for name, count in counts.items() if count >= FEW)
    pooled = _solve(seen, ("",))
    separate = _solve(seen, (*known, "")) if known else pooled
    return InPlace(
        toolchains={name: separate.toolchains[name] for name in known},
        others=pooled.toolchains[""],
        per_weight=separate.per_weight,
        per_value=separate.per_value,
    )


def _solve(seen: Sequence[Seen], names: tuple[str, ...]) -> InPlace:
    """The last name stands for all toolchains that are not named."""
    place = {name: at for at, name in enumerate(names)}
    rows = np.zeros((len(seen), 2 * len(names) + 2))
    wanted = np.empty(len(seen))
    weight = np.empty(len(seen))
    for row, one in enumerate(seen):
        at = 2 * place.get(one.toolchain, len(names) - 1)
        rest = max(0.0, 1.0 - one.share)
        rows[row, at : at + 2] = rest, rest * one.alone_us
        rows[row, -2:] = rest * one.weight_bytes, rest * one.value_bytes
        wanted[row] = one.in_place_us - one.alone_us
        weight[row] = 1.0 / max(FLOOR_US, one.alone_us)
    trust = np.ones(len(seen))
    found = np.zeros(rows.shape[1])
    for _ in range(REWEIGHTED):
        scale = weight * np.sqrt(trust)
        found = nonnegative_least_squares(rows * scale[:, None], wanted * scale)
        off = np.abs(wanted - rows @ found) * weight
        typical = max(float(np.median(off)), 1e-3)
        trust = 1.0 / np.maximum(1.0, off / (2.0 * typical))
    return InPlace(
        toolchains={
            name: (float(found[2 * at]), float(found[2 * at + 1])) for name, at in place.items()
        },
        per_weight=float(found[-2]),
        per_value=float(found[-1]),
    )


def nonnegative_least_squares(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The x of at least 0 with the least |rows·x − wanted|² (coordinate descent).

    A column of zeros, or one that others make up for, stays at 0.
    """
    size = np.sqrt((rows**2).sum(axis=0))
    used = np.flatnonzero(size > 0)
    columns = rows[:, used] / size[used]
    gram, target = columns.T @ columns, columns.T @ wanted
    x = np.zeros(len(used))
    for _ in range(SWEEPS):
        before = x.copy()
        for at in range(len(used)):
            x[at] = max(0.0, x[at] + target[at] - gram[at] @ x)
        if np.abs(x - before).max(initial=0.0) <= 1e-9 * max(1.0, np.abs(x).max(initial=0.0)):
            break
    found = np.zeros(rows.shape[1])
    found[used] = x / size[used]
    return found


def moved_bytes(graph: DataflowGraph, operators: Iterable[int]) -> tuple[int, int]:
    """Bytes of a partition's weights, and of the values across its border."""
    nodes = graph.close(graph.to_indices(map(OperatorNumber, operators)))
    inputs, outputs = graph.boundary(nodes)

    def size(index: int) -> int:
        return sum(kind.bytes for kind in graph.nodes[index].types)

    weights = sum(size(i) for i in members(nodes) if graph.nodes[i].form == "constant")
    return weights, sum(map(size, inputs)) + sum(map(size, outputs))
