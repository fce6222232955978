"""What a run's search problem is made of, as one value that stages hand on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from collage_engine.planning.search_problem import (
    best_placements,
    make_placement,
    make_problem,
    with_conversions,
)
from collage_engine.records.candidate import Candidate, CandidateRecord
from collage_engine.records.constants import FREE
from collage_engine.records.cost_table import CostTable, records_of
from collage_engine.records.graph import GraphRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Placement
from collage_engine.records.settings import RunSettings
from collage_engine.search.api import Search, check
from collage_engine.search.problem import CandidateId, Problem


@dataclass(frozen=True, kw_only=True)
class ProblemData:
    """Candidates with their costs, and everything else that a run's search problem is made of."""

    graph: GraphRecord
    candidates: tuple[Candidate, ...]
    costs: CostTable
    constants: Mapping[str, float]
    """What launches, hand-overs and conversions cost here and what the runtimes weigh, by the
    names that ``planning`` knows."""
    pins: tuple[Pin, ...]
    settings: RunSettings

    @cached_property
    def by_id(self) -> dict[str, Candidate]:
        """Return the candidates by id."""
        return {candidate.id: candidate for candidate in self.candidates}

    def with_costs(self, costs: CostTable) -> ProblemData:
        """Return the same with another cost table."""
        return replace(self, costs=costs)

    def with_candidates(self, candidates: Iterable[Candidate], costs: CostTable) -> ProblemData:
        """Return the same with other candidates and the costs of these."""
        return replace(self, candidates=tuple(candidates), costs=costs)

    def with_constants(self, constants: Mapping[str, float]) -> ProblemData:
        """Return the same with further constants, or other values of some."""
        return replace(self, constants={**self.constants, **constants})

    def with_guesses(self, us: float) -> ProblemData:
        """Return what can be searched before anything is measured.

        Invalid candidates are left out, copies are free, and who has no cost takes ``us``
        microseconds.
        """
        usable = [c for c in self.candidates if self.costs.cost(c.id).state != "invalid"]
        guessed = {
            c.id: msgspec.structs.replace(
                self.costs.isolated_cost(c.id), state="measured", median_us=us
            )
            for c in usable
            if not self.costs.cost(c.id).usable
        }
        free = self.with_constants(FREE)
        return free.with_candidates(usable, self.costs.with_isolated(guessed))

    def records(self) -> list[CandidateRecord]:
        """Return candidates joined with their costs, as documents hold them."""
        return records_of(self.candidates, self.costs)

    def problem(self) -> Problem:
        """Return the search problem of all candidates under the run's pins and limits."""
        return self.problem_of(self.candidates, self.costs)

    def problem_of(self, candidates: Sequence[Candidate], costs: CostTable) -> Problem:
        """Return the search problem of some candidates under the run's pins and limits."""
        return make_problem(self.graph, candidates, costs, self.pins, self.constants, self.settings)

    def best_placements(self, problem: Problem, search: Search) -> list[Placement]:
        """Return the best covers of a problem of these candidates, best first."""
        return best_placements(self.graph, self.by_id, self.costs, problem, search, self.settings)

    def placement(
        self, cover: Sequence[CandidateId], problem: Problem, estimated_us: float | None = None
    ) -> Placement:
        """Return a cover as a placement that was not measured yet.

        Args:
            cover: Ids of its candidates, in the order they run.
            problem: The search problem that it is a cover of.
            estimated_us: Its cost; None: what the problem says it costs.
        """
        if estimated_us is None:
            cost = check(problem, cover)
            estimated_us = cost if isinstance(cost, float) else None
        names = [str(name) for name in cover]
        made = make_placement(self.graph, self.by_id, self.costs, names, estimated_us)
        return with_conversions(made, problem)

    def cover_of(self, placement: Placement) -> tuple[Candidate, ...]:
        """Return the candidates of a placement, in the order they run."""
        return tuple(self.by_id[name] for name in candidates_of(placement))


def candidates_of(placement: Placement) -> list[str]:
    """Return the ids of a placement's candidates, in the order in which they run."""
    return [part.candidate for part in placement.partitions]
