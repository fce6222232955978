"""What a run's search problem is made of, as one value that stages hand on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import msgspec

from collage_engine.planning.conversions import conversions_of
from collage_engine.planning.deployment_limits import export_refusal, runtime_limits
from collage_engine.planning.search_problem import (
    RUNNERS_UP,
    broken_pins,
    make_placement,
    make_problem,
    problem_candidate,
    problem_pin,
)
from collage_engine.records.candidate import Candidate, CandidateRecord, Cost, CostTable, records_of
from collage_engine.records.format import CALL, FREE
from collage_engine.records.graph import GraphRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Placement
from collage_engine.records.settings import RunSettings
from collage_engine.search.api import Search, k_best, reuse, solve
from collage_engine.search.check import check_cover
from collage_engine.search.problem import Answer, Problem

Cover: TypeAlias = tuple[Candidate, ...]
"""Candidates that contain every operator once, in the order in which they run."""


@dataclass(frozen=True, kw_only=True)
class SearchInputs:
    """Candidates with their costs, and everything else that a run's search problem is made of."""

    graph: GraphRecord
    candidates: tuple[Candidate, ...]
    costs: CostTable
    constants: Mapping[str, float]
    """What launches, transitions and conversions cost here and what the runtimes weigh, by the
    names that ``planning`` knows."""
    pins: tuple[Pin, ...]
    settings: RunSettings

    @cached_property
    def by_id(self) -> dict[str, Candidate]:
        """Return the candidates by id."""
        return {candidate.id: candidate for candidate in self.candidates}

    def with_costs(self, costs: CostTable) -> SearchInputs:
        """Return the same with another cost table."""
        return replace(self, costs=costs)

    def with_candidates(self, candidates: Iterable[Candidate], costs: CostTable) -> SearchInputs:
        """Return the same with other candidates and the costs of these."""
        return replace(self, candidates=tuple(candidates), costs=costs)

    def with_constants(self, constants: Mapping[str, float]) -> SearchInputs:
        """Return the same with further constants, or other values of some."""
        return replace(self, constants={**self.constants, **constants})

    def at_equal_costs(self) -> SearchInputs:
        """Return what can be searched before anything is measured.

        Every partition costs the same, so that a cover with the fewest of them costs least; invalid
        candidates are left out, and what is between partitions is free.
        """
        usable = [c for c in self.candidates if self.costs.cost(c.id).state != "invalid"]
        equal = Cost(state="measured", median_us=1.0)
        costs = CostTable({c.id: equal for c in usable})
        return self.with_constants(FREE).with_candidates(usable, costs)

    def records(self) -> list[CandidateRecord]:
        """Return candidates joined with their costs, as documents hold them."""
        return records_of(self.candidates, self.costs)

    def problem(self) -> Problem:
        """Return the search problem of all candidates under the run's pins and limits."""
        return self.problem_of(self.candidates, self.costs)

    def problem_of(self, candidates: Sequence[Candidate], costs: CostTable) -> Problem:
        """Return the search problem of some candidates under the run's pins and limits."""
        return make_problem(self.graph, candidates, costs, self.pins, self.constants, self.settings)

    def why_barred(self, cover: Cover) -> str | None:
        """Return which deployment limit or which pins keep a cover from being exported, if any."""
        why = export_refusal(cover, runtime_limits(self.settings, self.constants))
        parts = [problem_candidate(c, self.costs) for c in cover]
        broken = broken_pins([problem_pin(pin) for pin in self.pins], parts)
        if why is None and broken:
            names = ", ".join(f"'{self.pins[index].title}'" for index in sorted(broken))
            why = f"against the {'pin' if len(broken) == 1 else 'pins'} {names}"
        return why

    def search(
        self, problem: Problem | None = None, previous: Search | None = None
    ) -> SearchResult:
        """Find the covers with the least cost.

        Args:
            problem: The search problem, where the caller has made it.
            previous: A search of the same problem, pins aside.
        """
        problem = problem or self.problem()
        search = reuse(problem, previous)
        answer = solve(problem, previous=search)
        ranked = (
            k_best(problem, RUNNERS_UP + 1, previous=search) if answer.cost_us is not None else []
        )
        covers = (tuple(self.by_id[str(name)] for name in each.cover) for each in ranked)
        return SearchResult(answer=answer, covers=tuple(covers))

    def placement(self, cover: Sequence[Candidate]) -> Placement:
        """Return a cover, whatever the pins and limits, as a placement that was not measured yet.

        It has an estimate where all of its candidates were measured.

        Args:
            cover: Its candidates, in the order in which they run. Those that are not among
                ``candidates`` have no cost.
        """
        parts = {c.id: self.by_id.get(c.id, c) for c in cover}
        # Where some run on a device, those on the host hand values over by copies alone.
        several_devices = len({c.device for c in self.candidates}) > 1
        among = {**self.by_id, **parts} if several_devices else parts
        problem = self.problem_of(list(among.values()), self.costs)
        cost = check_cover(msgspec.structs.replace(problem, pins=(), limits=None), list(parts))
        is_known = all(self.costs.cost(name).usable for name in parts)
        estimated_us = None
        if is_known and isinstance(cost, float):
            estimated_us = cost + self.constants.get(CALL, 0.0)
        made = make_placement(self.graph, list(parts.values()), self.costs, estimated_us)
        conversions = conversions_of(problem, list(parts))
        return msgspec.structs.replace(made, conversions=conversions)


@dataclass(frozen=True)
class SearchResult:
    """The search's answer, and the best covers."""

    answer: Answer
    covers: tuple[Cover, ...]
    """Best first; none where the search found none."""
