"""What is known of the costs of a run's candidates, by candidate id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from collage_engine.records.candidate import Candidate, CandidateRecord
from collage_engine.records.cost import UNKNOWN, Cost


@dataclass(frozen=True)
class CostTable:
    """Isolated costs and costs within the model of candidates, each by candidate id.

    A table never changes; the methods ``with_…`` return another one.
    """

    isolated: Mapping[str, Cost] = field(default_factory=dict)
    """Costs measured by themselves. A candidate without an entry is unmeasured."""
    in_model: Mapping[str, Cost] = field(default_factory=dict)
    """Costs within a whole model, of candidates where they are known; one whose isolated cost is
    measured anew counts in proportion."""

    @cached_property
    def _effective(self) -> dict[str, Cost]:
        found = dict(self.isolated)
        for name, within in self.in_model.items():
            if name in found:
                found[name] = found[name].in_model_like(within)
        return found

    def cost(self, candidate: str) -> Cost:
        """Return the cost that a search uses: within the model where known, else isolated."""
        return self._effective.get(candidate, UNKNOWN)

    def isolated_cost(self, candidate: str) -> Cost:
        """Return the cost as it was measured by itself."""
        return self.isolated.get(candidate, UNKNOWN)

    def known(self, candidate: str) -> bool:
        """Tell whether the candidate was measured, be it found invalid."""
        return self.isolated_cost(candidate).state != "unknown"

    def with_isolated(self, costs: Mapping[str, Cost]) -> CostTable:
        """Return this table with other isolated costs of some candidates, by id."""
        return replace(self, isolated={**self.isolated, **costs})

    def with_measured(
        self, candidates: Iterable[Candidate], by_key: Mapping[str, Cost]
    ) -> CostTable:
        """Return the table with costs by measurement key: equal work has the same cost."""
        return self.with_isolated({c.id: by_key[c.key] for c in candidates if c.key in by_key})

    def with_in_model(self, costs: Mapping[str, Cost]) -> CostTable:
        """Return this table with these costs within the model and no others."""
        return replace(self, in_model=dict(costs))


_CANDIDATE_FIELDS = Candidate.__struct_fields__


def records_of(candidates: Iterable[Candidate], costs: CostTable) -> list[CandidateRecord]:
    """Return the candidates joined with their costs, as documents hold them."""
    return [
        CandidateRecord(
            **{name: getattr(c, name) for name in _CANDIDATE_FIELDS},
            cost=costs.cost(c.id),
        )
        for c in candidates
    ]


def table_of(records: Sequence[CandidateRecord]) -> CostTable:
    """Return the costs that rows of a document hold."""
    return CostTable(
        isolated={r.id: r.cost.isolated() for r in records if r.cost != UNKNOWN},
        in_model={r.id: r.cost for r in records if r.cost.in_place},
    )
