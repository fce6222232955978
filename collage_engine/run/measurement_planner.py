"""Decides which candidates are measured: those that could influence the placement.

First come the groups of operators that TVM's FuseOps would fuse, the heaviest first, on the
toolchains that may be fast: small partitions are soon measured, and covers of them exist from then
on. Then the search finds the best cover, with unmeasured candidates priced at their optimistic
estimates; what that cover uses and is unmeasured is measured, which changes the estimates, and the
search is asked again, until the best cover consists of measured candidates or the time is over.

Collage's design document asks that only candidates be measured that could influence the placement
(RFC 0062, https://github.com/apache/tvm-rfcs/blob/main/rfcs/0062-collage.md). Which ones could is
estimated by this rule:

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
import time
from collections.abc import Iterable

import msgspec

from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import Candidate, Cost
from collage_engine.records.graph import GraphRecord
from collage_engine.records.operators import work_of_operators
from collage_engine.search.api import BRIEF_SEARCH_S, Search
from collage_engine.search.problem import Problem
from collage_engine.timing.measurer import GROUPS_AHEAD, CandidateGroup, Measuring, group_candidates
from collage_engine.trials.mixes import FAST_ALONE

OPERATIONS_PER_BYTE = 8.0
"""Operations that count as much as one byte moved, when the time of something timed is shared among
its operators: a core of today computes some 80 to 160 GFLOP/s in float32 and moves 10 to 20 GB/s
from or to memory (``kernels/target.py`` has the same figures in cycles)."""
FUSING_TAKES = 0.9
"""Share of what its parts take that a group takes at best; it decides how many candidates are
measured before the best cover consists of measured ones. From 0.6 to 1 that is 0 to 1.8 % more on
three models (``bench_lazy_measuring`` of commit ``3f683e4f``)."""


class Estimates:
    """Estimates of unmeasured candidates of one model, which sharpen as more is timed."""

    def __init__(self, graph: GraphRecord) -> None:
        """Begin without anything timed of this model."""
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

    def learn(self, candidate: Candidate, us: float) -> None:
        """Take into account what a candidate took, alone or within a model, in microseconds."""
        rate = us / sum(self.weights[number] for number in candidate.nodes)
        own = self._rates.setdefault(candidate.instance.id, {})
        self._least = min(self._least, rate)
        for number in candidate.nodes:
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


ROUND = 2 * GROUPS_AHEAD
"""Operator sets that are measured before the search is asked again: those that are compiled at once
and as many more. A search takes less time than measuring so many, and what is measured changes the
estimates of the others."""


class MeasurementPlanner:
    """Decides which of a model's candidates are measured, and has them measured.

    Attributes:
        inputs: the candidates with what is known of their costs by now.
    """

    def __init__(
        self,
        inputs: SearchInputs,
        measuring: Measuring,
        groups: Iterable[tuple[int, ...]] = (),
        profiled: Iterable[tuple[Candidate, float]] = (),
    ) -> None:
        """Begin with what is known of the costs.

        Args:
            inputs: The candidates with their costs so far.
            measuring: Measures candidates.
            groups: The operators that TVM's FuseOps would fuse, for each of its kernels.
            profiled: Partitions that were profiled within the model, with their microseconds.
        """
        self.inputs = inputs
        self._measuring = measuring
        self._groups = set(groups)
        self._members: dict[str, list[Candidate]] = {}
        for candidate in inputs.candidates:
            self._members.setdefault(candidate.key, []).append(candidate)
        self._estimates = Estimates(inputs.graph)
        for candidate, us in profiled:
            self._estimates.learn(candidate, us)
        self._learn(inputs.candidates)

    def measure(self, deadline: float) -> bool:
        """Measure until the best cover is measured or the time is over.

        Args:
            deadline: When to end, on the monotonic clock.

        Returns:
            Whether it ended because the best cover is measured throughout, with the run's pins and
            limits and, so that these have a price, without any.

        Raises:
            Cancelled: The user stopped it; ``inputs`` holds what is known.
            MeasureError: The model cannot be opened for measuring; the same holds.
        """
        self._time(self._fast_groups(), deadline)
        own = self.inputs.with_candidates((), self.inputs.costs).problem()
        cases = [(own.pins, own.limits), ((), None)]
        for pins, limits in dict.fromkeys(cases):
            while True:
                problem = msgspec.structs.replace(self._problem(), pins=pins, limits=limits)
                result = Search(problem, time_limit_s=BRIEF_SEARCH_S).find(pins, regrets=False)
                if not result.decided:
                    return False
                wanted = self._alternatives_to(
                    [self.inputs.candidates[index] for index in result.cover]
                )
                if not wanted:
                    break
                if time.monotonic() >= deadline or not self._time(wanted, deadline):
                    return False
        return True

    def _problem(self) -> Problem:
        """Return the search problem in which unmeasured candidates cost what is estimated."""
        inputs, costs = self.inputs, self.inputs.costs
        estimated = {
            c.id: Cost(state="measured", median_us=self._estimates.us(c))
            for c in inputs.candidates
            if not costs.known(c.id)
        }
        return inputs.with_costs(costs.with_isolated(estimated)).problem()

    def _fast_groups(self) -> list[Candidate]:
        """Return the candidates over the groups on instances that may be fast.

        An instance may be fast where it takes little more than the fastest one for these operators,
        by what it took in a profile or on the whole model, or where nothing is known of it.
        """
        groups = [
            (c, self._estimates.us(c)) for c in self.inputs.candidates if c.nodes in self._groups
        ]
        least_us: dict[tuple[int, ...], float] = {}
        for candidate, us in groups:
            least_us[candidate.nodes] = min(us, least_us.get(candidate.nodes, us))
        return [c for c, us in groups if us <= FAST_ALONE * least_us[c.nodes]]

    def _alternatives_to(self, cover: Iterable[Candidate]) -> list[Candidate]:
        """Return the unmeasured candidates of a cover, and others that may be as fast.

        Those over the same operators are timed in the same rounds, so that the search compares
        times of the same minute.
        """
        known = self.inputs.costs.known
        wanted_us = {c.nodes: self._estimates.us(c) for c in cover if not known(c.id)}
        # The heaviest operator sets, each as often as the model has it.
        sets = sorted(wanted_us, key=lambda nodes: -wanted_us[nodes])[:ROUND]
        limit_us = {nodes: FAST_ALONE * wanted_us[nodes] for nodes in sets}
        return [
            c
            for c in self.inputs.candidates
            if c.nodes in limit_us
            and not known(c.id)
            and self._estimates.us(c) <= limit_us[c.nodes]
        ]

    def _time(self, wanted: Iterable[Candidate], deadline: float) -> bool:
        """Measure those of the candidates that have no cost; tell whether any was measured."""
        costs = self.inputs.costs
        new = {c.key: c for c in wanted if not costs.known(c.id)}
        if not new or time.monotonic() >= deadline:
            return False
        groups = group_candidates(new.values())
        groups.sort(key=self._decided_us, reverse=True)
        measured = self._measuring.measure_batch(groups, deadline)
        fresh = [c for key in measured for c in self._members[key]]
        self.inputs = self.inputs.with_costs(costs.with_measured(fresh, measured))
        self._learn(fresh)
        return bool(fresh)

    def _decided_us(self, group: CandidateGroup) -> float:
        """Return how much of the model's time a group decides, wherever its work occurs."""
        times = max(len(self._members[c.key]) for c in group)
        return times * self._estimates.us(group[0])

    def _learn(self, candidates: Iterable[Candidate]) -> None:
        """Have the estimates rest on the isolated costs of these candidates, too."""
        for candidate in candidates:
            cost = self.inputs.costs.cost(candidate.id)
            if cost.usable and cost.median_us is not None:
                self._estimates.learn(candidate, cost.median_us)
