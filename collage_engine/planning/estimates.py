"""Optimistic estimates of candidates that were not measured, from those that were.

Collage's design document asks that only candidates be measured that could influence the placement
(RFC 0062, https://github.com/apache/tvm-rfcs/blob/main/rfcs/0062-collage.md). Which ones could is
judged by this rule:

1. Every operator has a *weight*: its operations, and ``OPERATIONS_PER_BYTE`` for each byte that it
   reads or writes.
2. Whatever was timed (a candidate alone, a partition within a profiled model, a whole model) took
   so many microseconds per weight of its operators. An operator's *rate* on a toolchain instance is
   the least such figure of anything timed there that contains it; its rate altogether is the least
   of all instances.
3. An unmeasured candidate is estimated at ``FUSING_TAKES`` times the sum, over its operators, of
   weight times rate: the rate of its own instance where one is known, otherwise the rate
   altogether.

So a candidate costs what its parts are known to cost on its instance, less what fusing them could
save. Where nothing is known of an operator on an instance, it counts as the fastest seen anywhere;
where nothing at all was timed with it, at the least rate of the model. An estimate only decides
what is measured next: no estimate is ever part of a placement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import GraphRecord
from collage_engine.records.operators import work_of_operators

OPERATIONS_PER_BYTE = 8.0
"""Operations that count as much as one byte moved, when the time of something timed is shared among
its operators: a core of today computes some 80 to 160 GFLOP/s in float32 and moves 10 to 20 GB/s
from or to memory (``kernels/target.py`` has the same figures in cycles)."""
FUSING_TAKES = 0.9
"""Share of what its parts take that a group takes at best; it decides how many candidates are
measured before the best cover consists of measured ones. "Lazy measuring" in
``tests/benchmarks/RESULTS.md`` counts how many a value leaves out, and what that loses."""


class Timed(NamedTuple):
    """Something that was timed: operators that ran together on a toolchain instance."""

    instance: str
    operators: tuple[int, ...]
    us: float


class Estimates:
    """Estimates of unmeasured candidates of one model, which sharpen as more is timed."""

    def __init__(self, graph: GraphRecord, timed: Iterable[Timed] = ()) -> None:
        """Begin with what was timed so far.

        Args:
            graph: The model.
            timed: Partitions of profiled models, in microseconds within the model.
        """
        self.weights = [
            work.operations + OPERATIONS_PER_BYTE * max(1, work.moved_bytes)
            for work in work_of_operators(graph)
        ]
        self._rates: dict[str, dict[int, float]] = {}
        """Least microseconds per weight, by instance id and operator number."""
        self._fastest: dict[int, float] = {}
        """The least rate of all instances, by operator number."""
        self._least = math.inf
        """The least rate of anything that was timed."""
        for each in timed:
            self.learn(each)

    def weight(self, operators: Iterable[int]) -> float:
        """Return the weight of some operators together."""
        return sum(self.weights[number] for number in operators)

    def learn(self, timed: Timed) -> None:
        """Take what was timed into account."""
        rate = timed.us / self.weight(timed.operators)
        own = self._rates.setdefault(timed.instance, {})
        self._least = min(self._least, rate)
        for number in timed.operators:
            own[number] = min(rate, own.get(number, math.inf))
            self._fastest[number] = min(rate, self._fastest.get(number, math.inf))

    def us(self, candidate: Candidate) -> float:
        """Return the optimistic estimate of an unmeasured candidate, in microseconds.

        It is 0 where nothing was timed yet.
        """
        own = self._rates.get(candidate.instance.id, {})
        neutral = self._least if self._rates else 0.0
        return FUSING_TAKES * sum(
            self.weights[number] * own.get(number, self._fastest.get(number, neutral))
            for number in candidate.nodes
        )
