"""Lazy measuring: a candidate that cannot be in a better cover is left unmeasured.

First the whole model and the heavy operators by themselves are measured, on which the bounds of all
larger candidates rest. Then the best cover is searched as if every unmeasured candidate were as
fast as its bound allows, and its unmeasured candidates are measured; this is repeated until that
cover is measured throughout: then no cover with an unmeasured candidate can cost less (see
``search.lazy_measuring``). A bound is what bytes and operations prove (``bounds.certified``) or,
where that is more, what ``bounds.heuristic`` assumes. A few candidates that only the assumption
leaves out are measured all the same, drawn at random, to audit it; when one clearly breaks it, more
are drawn.

Verdicts on pins compare covers with and without a pin, so all of these are made certain.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from collage_engine.bounds.heuristic import ASSUMED, ASSUMPTION, PROVEN, Parts
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import UNKNOWN, Cost
from collage_engine.records.cost_table import CostTable
from collage_engine.records.counted import counted
from collage_engine.run.problem_data import ProblemData
from collage_engine.search.lazy_measuring import LazyResult, measure_lazily, rank_unmeasured
from collage_engine.search.limits import limits_in_words, without_limit
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.timing.candidate_timing import in_order
from collage_engine.timing.measurer import CandidateGroup, group_candidates
from collage_engine.wording import constraints as say

AUDIT_SIZE, AUDIT_SHARE = 6, 0.02
"""Candidates that one audit measures: so many, or this share of those left out, whichever is more;
chosen."""
AUDITS = 4
"""Audits at most; a further one follows only where a candidate clearly broke the assumption;
chosen."""
FAST_ALONE = 1.3
"""Operators are measured first on the toolchains whose whole models take no more than so many times
the fastest; chosen: what is slower alone is rarely the fastest for an operator that matters."""
BROKEN_BELOW = 0.9
"""A candidate clearly breaks the assumption when its cost is less than this share of the bound;
chosen: the run-to-run drift alone explains some percent."""
NEXT_BEST = 4
"""Covers besides the best whose unmeasured candidates are measured in the same round; chosen, to
start the measuring child for several candidates at once."""
SEARCH_S = 3.0
"""Seconds for one search of a graph that is too wide for exact search; chosen."""
ROUNDING = 1e-9
"""Share by which a time may be below its bound after that was lowered to it: rounding."""
PINS_APART = 6
"""Pins up to which the cover without each of them is made certain too; chosen, since each costs
further searches."""


class MeasuresInWaves(Protocol):
    """Measures some of the candidates that a run counts."""

    def wave(
        self, groups: Sequence[CandidateGroup], deadline: float, left: int
    ) -> Mapping[str, Cost]:
        """Measure groups of candidates.

        Args:
            groups: What is measured.
            deadline: When to end, on the monotonic clock.
            left: How many keys are unmeasured now.

        Returns:
            Isolated costs by measurement key.
        """
        ...


class Needed:
    """Decides which of a model's candidates must be measured, and has them measured.

    Attributes:
        certified: Whether no unmeasured candidate can be in a better cover, under the assumption.
        proven: Keys left unmeasured of which bytes and operations alone prove that.
        assumed: Keys left unmeasured of which only the assumption says that.
        refuted: The least measured time as a share of its certified bound, or 1 where none is less:
            all certified bounds were lowered to this share, since the peaks that they rest on were
            measured while the clock was low.
    """

    def __init__(
        self,
        graph: DataflowGraph,
        data: ProblemData,
        measuring: MeasuresInWaves,
        deadline: float,
        keep: Sequence[Candidate] = (),
    ) -> None:
        """Begin with what is known of the costs.

        Args:
            graph: The model.
            data: The candidates with their costs so far.
            measuring: Measures candidates.
            deadline: When to end, on the monotonic clock.
            keep: Candidates that are measured in any case, in every format, since something else
                needs them.
        """
        unmeasured = {c.id: UNKNOWN for c in data.candidates if not data.costs.known(c.id)}
        self._data = data
        self._table = data.costs.with_isolated(unmeasured).with_heuristic_bounds({})
        self._candidates = data.candidates
        self.certified = False
        self.proven: set[str] = set()
        self.assumed: set[str] = set()
        self.refuted = 1.0
        self._unproven = ""
        """Why it is not certified, in words."""
        self._operators = len(graph.operators)
        self._measuring = measuring
        self._deadline = deadline
        self._parts = Parts(graph.record, self._candidates, data.constants)
        self._costs = {
            c.key: data.costs.isolated_cost(c.id)
            for c in self._candidates
            if data.costs.known(c.id)
        }
        self._members: dict[str, list[Candidate]] = {}
        for candidate in self._candidates:
            self._members.setdefault(candidate.key, []).append(candidate)
        self._keep = {(c.instance.id, c.nodes) for c in keep}
        self._by_id = data.by_id

    def measure(self, audit: bool) -> CostTable:
        """Measure what is needed.

        Args:
            audit: Whether to check the assumption on candidates that it leaves out.

        Returns:
            The costs; where a candidate is unmeasured, its bounds and why it is unmeasured.
        """
        base = [c for c in self._candidates if self._parts.is_base(c)]
        kept = [
            c
            for c in self._candidates
            if len(c.nodes) == self._operators or (c.instance.id, c.nodes) in self._keep
        ]
        fast = self._fast_alone()
        if fast:
            # Other large candidates tell least now and take longest, slow toolchains win least.
            first = [c for c in base if c.instance.id in fast]
            waves = [first, base, kept]
        else:
            waves = [[*base, *kept]]
        for wanted in waves:
            self._measure(wanted)
        self.certified = self._measure_until_certain()
        for _ in range(AUDITS if audit else 0):
            if not self.certified or not self._left() or self._audit_passes():
                break
        self._classify()
        return self.costs()

    def _fast_alone(self) -> set[str]:
        """Return the instances whose whole models take little more than the fastest one's.

        ``FAST_ALONE`` says how much. Instances whose whole model has no cost are missing.
        """
        us = {
            c.instance.id: cost.median_us
            for c in self._candidates
            if len(c.nodes) == self._operators
            and (cost := self._costs.get(c.key)) is not None
            and cost.usable
            and cost.median_us is not None
        }
        limit_us = FAST_ALONE * min(us.values(), default=0.0)
        return {name for name, alone_us in us.items() if alone_us <= limit_us}

    def _audit_passes(self) -> bool:
        """Measure some candidates that only the assumption leaves out; tell if none broke it."""
        self._classify()
        drawn = sorted(self.assumed)
        # Seeded by their number, so that an equal run draws the same candidates.
        random.Random(len(drawn)).shuffle(drawn)
        del drawn[max(AUDIT_SIZE, round(AUDIT_SHARE * len(drawn))) :]
        bounds = self._bounds()
        assumed = {key: min(bounds[c.id] for c in self._members[key]) for key in drawn}
        self._measure(self._members[key][0] for key in drawn)
        certain = self._measure_until_certain()
        self.certified = self.certified and certain
        took = {key: self._costs[key].median_us for key in drawn if key in self._costs}
        return all(us is None or us >= BROKEN_BELOW * assumed[key] for key, us in took.items())

    # ------------------------------------------------------------------ measuring

    def _left(self) -> bool:
        """Tell whether any key is unmeasured."""
        return any(key not in self._costs for key in self._members)

    def _measure(self, wanted: Iterable[Candidate]) -> None:
        """Measure the keys of these candidates that are not known yet, unless the time is over."""
        new = {c.key: c for c in wanted if c.key not in self._costs}
        if not new or time.monotonic() >= self._deadline:
            return
        left = sum(key not in self._costs for key in self._members)
        groups = in_order(group_candidates(new.values()), self._operators)
        groups.sort(key=self._weight, reverse=True)
        self._costs.update(self._measuring.wave(groups, self._deadline, left))

    def _weight(self, group: CandidateGroup) -> tuple[bool, float]:
        """Return a key that sorts groups by how much of the model's time they decide.

        Whole models come first, then the others by their certified bounds; work that occurs several
        times in the model counts as often.
        """
        certified = self._table.certified_bound_us
        decided_us = max(
            certified.get(c.id, 0.0) * len(self._members[c.key]) for c in group.candidates
        )
        return len(group.nodes) == self._operators, decided_us

    def _measure_until_certain(self) -> bool:
        """Measure until the best covers are certain, by bounds that no measured time refutes."""
        certain = self._measure_by_these_bounds()
        while self._lower_refuted_bounds():
            certain = self._measure_by_these_bounds()
        return certain

    def _lower_refuted_bounds(self) -> bool:
        """Lower all certified bounds by as much as a measured time is below its own; tell if so."""
        certified = self._table.certified_bound_us
        share = min(
            (
                us / certified[c.id]
                for c in self._candidates
                if (us := self._costs.get(c.key, UNKNOWN).median_us) and certified.get(c.id)
            ),
            default=1.0,
        )
        if share >= 1.0 - ROUNDING:
            return False
        self.refuted *= share
        lowered = {name: us * share for name, us in certified.items()}
        self._table = self._table.with_certified_bounds(lowered)
        return True

    def _measure_by_these_bounds(self) -> bool:
        """Measure until the best covers are certain, with all pins and limits and without them."""
        problem = self._problem()
        pins = problem.pins
        cases = [(pins, problem.limits), (pins, None), ((), None)]
        if 1 < len(pins) <= PINS_APART:
            cases += [
                (pins[:place] + pins[place + 1 :], problem.limits) for place in range(len(pins))
            ]
        kinds = limits_in_words(problem.limits) if problem.limits is not None else {}
        if problem.limits is not None and len(kinds) > 1:
            cases += [(pins, without_limit(problem.limits, kind)) for kind in kinds]
        certain = True
        self._unproven = ""
        for case, limits in dict.fromkeys(cases):
            result = measure_lazily(
                msgspec.structs.replace(self._problem(), pins=case, limits=limits),
                self._answer,
                next_best=NEXT_BEST,
                stop=lambda: time.monotonic() >= self._deadline,
                bounds=self._bounds,
                time_limit_s=SEARCH_S,
            )
            certain = certain and result.certified
            if not result.certified:  # the first: that of the run's own pins and limits
                self._unproven = self._unproven or self._why_not(result)
        return certain

    def _why_not(self, result: LazyResult) -> str:
        """Return in words why the best cover is not certain."""
        if time.monotonic() >= self._deadline:
            return say.BUDGET_SPENT
        if result.ended == "search limit":
            text = say.TOO_WIDE_TO_PROVE.format(seconds=f"{SEARCH_S:.0f}")
            if result.cost_us and result.lower_bound_us is not None:
                gap = max(0.0, 1.0 - result.lower_bound_us / result.cost_us)
                text = say.COST_AT_MOST_LESS.format(text=text, gap=f"{gap:.2%}")
            return text
        return say.COULD_NOT_BE_MEASURED

    def _answer(self, ids: list[CandidateId]) -> dict[CandidateId, float | None]:
        """Return the measured costs of these candidates, and of all others with the same keys."""
        before = set(self._costs)
        self._measure(self._by_id[str(name)] for name in ids)
        # The costs as the search wants them, at the run's percentile.
        new = [c for key in self._costs.keys() - before for c in self._members[key]]
        costs = CostTable().with_measured(new, self._costs)
        return {c.id: c.cost_us for c in self._data.problem_of(new, costs).candidates}

    def _bounds(self) -> dict[CandidateId, float]:
        """Return the lower bound of every unmeasured candidate in microseconds, by id."""
        certified = self._table.certified_bound_us
        if not self._data.settings.parts.heuristic_bounds:
            unknown = (c.id for c in self._candidates if c.key not in self._costs)
            return {name: certified.get(name, 0.0) for name in unknown}
        return {
            candidate.id: max(us, certified.get(candidate.id, 0.0))
            for candidate, us in zip(self._candidates, self._parts.bounds(self._costs), strict=True)
            if candidate.key not in self._costs
        }

    def _problem(self) -> Problem:
        """Return the search problem of the costs so far."""
        table = self._table.with_measured(self._candidates, self._costs)
        return self._data.problem_of(self._candidates, table)

    # ------------------------------------------------------------------ reporting

    def _classify(self) -> None:
        """Tell apart what is proven and what is only assumed not to matter."""
        self.proven, self.assumed = set(), set()
        if not self.certified or not self._left():
            return
        left = {key for key in self._members if key not in self._costs}
        matters = {
            self._by_id[str(o.candidate)].key
            for o in rank_unmeasured(self._problem(), time_limit_s=SEARCH_S)
            if o.can_matter
        }
        self.proven = left - matters
        self.assumed = left & matters

    def costs(self) -> CostTable:
        """Return the costs so far, and of unmeasured candidates their bounds and the reasons."""
        bounds = self._bounds()
        reasons = dict.fromkeys(self.proven, PROVEN) | dict.fromkeys(self.assumed, ASSUMED)
        left = [c for c in self._candidates if c.key not in self._costs]
        certified = self._table.certified_bound_us
        table = self._table.with_measured(self._candidates, self._costs)
        table = table.with_isolated({c.id: Cost(reason=reasons.get(c.key)) for c in left})
        return table.with_heuristic_bounds(
            {c.id: bounds[c.id] for c in left if bounds[c.id] > certified.get(c.id, 0.0)}
        )

    def words(self) -> str | None:
        """Return a sentence on how many candidates are left unmeasured, and on what grounds.

        It is None where none is.
        """
        left = sum(key not in self._costs for key in self._members)
        if not left:
            return None
        if not self.certified:
            template = say.LEFT_UNMEASURED_ONE if left == 1 else say.LEFT_UNMEASURED
            return template.format(candidates=counted(left, "candidate"), reason=self._unproven)
        template = say.LEFT_OF_ONE if left == 1 else say.LEFT_OF
        text = template.format(left=left, candidates=counted(len(self._members), "candidate"))
        grounds = []
        if self.proven:
            grounds.append(say.BY_CERTIFIED_BOUNDS.format(count=len(self.proven)))
        if self.assumed:
            grounds.append(
                say.BY_HEURISTIC_BOUNDS.format(count=len(self.assumed), assumption=ASSUMPTION)
            )
        return ": ".join([text, " and ".join(grounds)] if grounds else [text])
