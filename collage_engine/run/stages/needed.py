"""Lazy measuring in the pipeline: what cannot be in a better cover is left unmeasured.

First the whole model and the heavy operators alone, which the bounds of all groups rest on. Then
whatever the best cover would contain were all unmeasured candidates as fast as their bounds allow,
again and again, until that cover is measured throughout: no cover with an unmeasured candidate can
cost less (``search.lazy_measuring``). The bounds are what bytes and operations prove
(``measure.bounds``) or, where that is more, what ``measure.assumed`` assumes; a few of the
candidates that only the assumption leaves out are measured all the same, drawn by lot, to hold it
against them; when one clearly breaks it, more are drawn.

Verdicts compare covers with and without a pin, so all of these are made certain.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from collage_engine.bounds.heuristic import ASSUMED, ASSUMPTION, PROVEN, Parts
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.candidate import CandidateRecord, CoverPart
from collage_engine.records.cost import UNKNOWN, Cost
from collage_engine.records.counted import counted
from collage_engine.search.lazy_measuring import LazyResult, measure_lazily, rank_unmeasured
from collage_engine.search.limits import limits_in_words, without_limit
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.timing.candidate_timing import Measuring, in_order, with_costs
from collage_engine.timing.measurer import group_candidates

LOT, LOT_SHARE = 6, 0.02
"""Left-out candidates that are measured to check the assumption: so many, or that part of them."""
LOTS = 4
"""Drawn at most; another one only when one had a candidate that clearly broke the assumption."""
BROKEN = 0.9
"""Clearly broken: less than that part of what was assumed."""
NEXT_BEST = 4
"""Covers besides the best whose unmeasured candidates are measured in the same round."""
SEARCH_S = 3.0
"""For one search of a graph too wide for exact search."""
PINS_APART = 6
"""With more pins than this, verdicts are not made certain one by one."""

MakeProblem = Callable[[Sequence[CandidateRecord]], Problem]


class Needed:
    """What has to be measured of a model's candidates, and the measuring of it."""

    def __init__(
        self,
        graph: DataflowGraph,
        records: Sequence[CandidateRecord],
        constants: Mapping[str, float],
        make_problem: MakeProblem,
        measuring: Measuring,
        deadline: float,
        keep: Sequence[CoverPart] = (),
    ) -> None:
        """``keep``: measured in any case, for what else they are of use."""
        self.records = [
            msgspec.structs.replace(r, assumed_bound_us=None, cost=UNKNOWN)
            if r.cost.state == "unknown"
            else r
            for r in records
        ]
        self.certified = False
        """Nothing that is left unmeasured can be in a better cover (under the assumption)."""
        self.proven: set[str] = set()
        """Keys left unmeasured of which the bytes and operations alone prove that."""
        self.assumed: set[str] = set()
        """Keys left unmeasured of which only the assumption says it."""
        self._unproven = ""
        """Why it is not certified, in words."""
        self._operators = len(graph.operators)
        self._make_problem = make_problem
        self._measuring = measuring
        self._deadline = deadline
        self._parts = Parts(graph.record, self.records, constants)
        self._costs = {r.key: r.cost for r in self.records if r.cost.state != "unknown"}
        self._members: dict[str, list[CandidateRecord]] = {}
        for record in self.records:
            self._members.setdefault(record.key, []).append(record)
        self._keep = {(part.instance.id, tuple(part.operators)) for part in keep}
        self._by_id = {record.id: record for record in self.records}

    def measure(self, check: bool) -> list[CandidateRecord]:
        """Measure what is needed; the records with costs and, where unmeasured, bounds and why.

        ``check``: measure the lot too.
        """
        self._measure(
            r
            for r in self.records
            if len(r.nodes) == self._operators
            or self._parts.is_base(r)
            or (r.instance.id, r.nodes) in self._keep
        )
        self.certified = self._settle()
        for _ in range(LOTS if check else 0):
            if not self.certified or not self._left() or self._lot_holds():
                break
        self._judge()
        return self._told()

    def _lot_holds(self) -> bool:
        """Measure a lot of what only the assumption leaves out; whether none clearly broke it."""
        self._judge()
        lot = sorted(self.assumed)
        random.Random(len(lot)).shuffle(lot)
        del lot[max(LOT, round(LOT_SHARE * len(lot))) :]
        bounds = self._bounds()
        assumed = {key: min(bounds[r.id] for r in self._members[key]) for key in lot}
        self._measure(self._members[key][0] for key in lot)
        done = self._settle()
        self.certified = self.certified and done
        took = {key: self._costs[key].median_us for key in lot if key in self._costs}
        return all(us is None or us >= BROKEN * assumed[key] for key, us in took.items())

    # ------------------------------------------------------------------ measuring

    def _left(self) -> bool:
        return any(key not in self._costs for key in self._members)

    def _measure(self, wanted: Iterable[CandidateRecord]) -> None:
        """Measure these candidates' keys, those that are not known yet."""
        new = {r.key: r for r in wanted if r.key not in self._costs}
        if not new or time.monotonic() >= self._deadline:
            return
        left = sum(key not in self._costs for key in self._members)
        groups = in_order(group_candidates(new.values()), self._operators)
        self._costs.update(self._measuring.wave(groups, self._deadline, left))

    def _settle(self) -> bool:
        """Measure until the best covers are certain, under all pins and limits and without them."""
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
        done = True
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
            done = done and result.certified
            if not result.certified:  # the first: that of the run's own pins and limits
                self._unproven = self._unproven or self._why_not(result)
        return done

    def _why_not(self, result: LazyResult) -> str:
        if time.monotonic() >= self._deadline:
            return "the budget was spent"
        if result.ended == "search limit":
            said = f"the graph is too wide to prove in {SEARCH_S:.0f} s that they cannot matter"
            if result.cost_us and result.lower_bound_us is not None:
                gap = max(0.0, 1.0 - result.lower_bound_us / result.cost_us)
                said += f"; by their bounds, a cover with them costs at most {gap:.2%} less"
            return said
        return "they could not be measured"

    def _answer(self, ids: list[CandidateId]) -> dict[CandidateId, float | None]:
        """Measured costs of these candidates and of all with the same keys."""
        before = set(self._costs)
        self._measure(self._by_id[str(name)] for name in ids)
        # The costs as the search wants them, at the run's percentile.
        news = [r for key in self._costs.keys() - before for r in self._members[key]]
        problem = self._make_problem(with_costs(news, self._costs))
        return {c.id: c.cost_us for c in problem.candidates}

    def _bounds(self) -> dict[CandidateId, float]:
        return {
            record.id: max(us, record.lower_bound_us or 0.0)
            for record, us in zip(self.records, self._parts.bounds(self._costs), strict=True)
            if record.key not in self._costs
        }

    def _problem(self) -> Problem:
        return self._make_problem(with_costs(self.records, self._costs))

    # ------------------------------------------------------------------ telling

    def _judge(self) -> None:
        """Of what is left: what is proven, what is assumed not to matter."""
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

    def _told(self) -> list[CandidateRecord]:
        bounds = self._bounds()
        found = []
        for record in with_costs(self.records, self._costs):
            if record.key not in self._costs:
                assumed = bounds[record.id]
                reason = (
                    PROVEN
                    if record.key in self.proven
                    else ASSUMED
                    if record.key in self.assumed
                    else None
                )
                record = msgspec.structs.replace(
                    record,
                    assumed_bound_us=assumed if assumed > (record.lower_bound_us or 0.0) else None,
                    cost=Cost(reason=reason),
                )
            found.append(record)
        return found

    def words(self) -> str | None:
        """How many are left unmeasured, and on what grounds; None when none is."""
        left = sum(key not in self._costs for key in self._members)
        if not left:
            return None
        be = "is" if left == 1 else "are"
        if not self.certified:
            return f"{counted(left, 'candidate')} {be} left unmeasured: {self._unproven}"
        said = [f"{left} of {counted(len(self._members), 'candidate')} {be} left unmeasured"]
        if self.proven:
            said.append(f"{len(self.proven)} proven not to matter by bytes and operations")
        if self.assumed:
            said.append(f"{len(self.assumed)} {ASSUMPTION}")
        return f"{said[0]}: {', '.join(said[1:])}"
