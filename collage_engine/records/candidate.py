"""Candidates: sub-graphs that a toolchain could run as one partition, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import msgspec

from collage_engine.records.graph import OperatorNumber
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.typed import Count, Figure, Positive

CostState = Literal["measured", "invalid", "unknown"]
InModelSource = Literal["seen", "predicted"]
"""Whether a cost within a model was seen there, or predicted from costs that were."""


class Cost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time of one call in microseconds, from hot repeats on recorded activations.

    ``median_us``, ``low_us`` (20th percentile) and ``high_us`` (80th) are set when measured. An
    invalid cost is infinite and always carries a ``reason``.
    """

    state: CostState = "unknown"
    median_us: Positive | None = None
    low_us: Figure | None = None
    high_us: Figure | None = None
    count: Count = 0
    max_rel_error: Figure | None = None
    reason: str | None = None
    wrong_numbers: bool = False
    """Whether it is invalid for what it made of one model's values: wrong numbers, or an error;
    another's may be right."""
    measured_at: str | None = None
    """ISO 8601, UTC."""
    from_store: bool = False
    alone_us: Figure | None = None
    """Where the times are those within a whole model (``in_place``): the isolated median; None:
    it was never measured by itself."""
    in_place: Literal["", "seen", "predicted"] = ""
    """Whether the times are those within a whole model, seen there or predicted from what was."""

    @property
    def usable(self) -> bool:
        """Tell whether there is a time."""
        return self.state == "measured"

    @property
    def fault(self) -> str | None:
        """Return why a cost out of a file cannot be used; None: it can."""
        if self.state == "invalid" and not self.reason:
            return "it is invalid without a reason"
        if self.state == "measured" and self.median_us is None:
            return "it is measured without a time"
        return None

    def in_model(self, us: float, source: InModelSource) -> Cost:
        """Return this cost as it is within a whole model.

        Args:
            us: The median within the model, in microseconds.
            source: Whether ``us`` was seen there or predicted.

        Returns:
            A cost with the median ``us`` whose spread is that of the isolated repeats, in
            proportion. An unmeasured cost is returned as it is.
        """
        isolated = self.isolated()
        if isolated.median_us is None:
            return self
        scaled = isolated.scaled(us / isolated.median_us)
        return msgspec.structs.replace(
            scaled, median_us=us, alone_us=isolated.median_us, in_place=source
        )

    def in_model_like(self, known: Cost) -> Cost:
        """Return this isolated cost as one within the model, as an older one of the same work was.

        Args:
            known: The older cost. Where it is one within a model, the ratio of its two medians
                is applied to this cost; where it is not, this cost is returned as it is.
        """
        if not known.in_place or not known.alone_us or not self.usable or self.in_place:
            return self
        factor = (known.median_us or 0.0) / known.alone_us
        return self.in_model((self.median_us or 0.0) * factor, known.in_place)

    def isolated(self) -> Cost:
        """Return this cost as it was measured by itself."""
        if self.alone_us is None or not self.median_us:
            return self
        scaled = self.scaled(self.alone_us / self.median_us)
        return msgspec.structs.replace(scaled, median_us=self.alone_us, alone_us=None, in_place="")

    def scaled(self, factor: float) -> Cost:
        """Return this cost with its times multiplied by a factor."""
        return msgspec.structs.replace(
            self,
            median_us=None if self.median_us is None else self.median_us * factor,
            low_us=None if self.low_us is None else self.low_us * factor,
            high_us=None if self.high_us is None else self.high_us * factor,
        )

    @property
    def us(self) -> float:
        """Return the median in microseconds; infinite when invalid, NaN when unknown."""
        if self.state == "invalid":
            return float("inf")
        return float("nan") if self.median_us is None else self.median_us


UNKNOWN = Cost()
"""The cost of a candidate that was not measured."""


def invalid(reason: str, *, wrong_numbers: bool = False) -> Cost:
    """Return the cost of a candidate that cannot be used, for the reason given."""
    return Cost(state="invalid", reason=reason, wrong_numbers=wrong_numbers)


RefusalKind = Literal["judged", "alone", "calls", "device", "precision"]


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """One toolchain instance's refusal of one operator.

    The kinds are: ``judged``, the toolchain says in ``detail`` why not; ``alone``, it takes the
    operator, but not by itself; ``calls``, no partition with it would call ``library``; ``device``,
    the operator stays on the host and not on ``detail``; ``precision``, it gains nothing in
    ``detail``.
    """

    kind: RefusalKind
    operator: str = ""
    """The operator of the dataflow graph: ``nn.conv2d``."""
    detail: str = ""
    """For the kind ``judged`` a sentence of the toolchain's, for others a name; shown as it is."""
    toolchain: str = ""
    """The toolchain's title."""
    library: str = ""
    """Title of the library that the toolchain's kernels would call; empty: none."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sub-graph that a toolchain instance could run as one partition, without its cost.

    Everything else refers to it by ``id``; what is known of its cost stands in a ``CostTable``.
    """

    id: str
    """Stable within a model: ``<instance id>:<hash of the operator set and the formats>``."""
    instance: ToolchainInstance
    nodes: tuple[OperatorNumber, ...]
    """Operator numbers, ascending."""
    label: str
    """Operators joined by ``+``, in order, cut in the middle when long."""
    rule: str = ""
    """Which rule found it (provenance), e.g. ``tvm.combine``, ``greedy``."""
    composites: tuple[tuple[str, tuple[OperatorNumber, ...]], ...] = ()
    """(composite name, operator numbers) that map to one library call each."""
    key: str = ""
    """Key of its measurement; equal work has equal keys."""
    device: str = "cpu"
    takes: dict[int, str] = {}
    """Format wanted for an input value (operator number of its producer); absent: plain."""
    gives: dict[int, str] = {}
    """Format of an output value; absent: plain."""

    @property
    def calls_text(self) -> str:
        """Return its composites for people: ``openblas.conv (0, 1, 2)``, each one library call."""
        return "; ".join(f"{name} ({', '.join(map(str, of))})" for name, of in self.composites)


class CandidateRecord(Candidate, frozen=True, kw_only=True, omit_defaults=True):
    """The row of a document about a candidate: the candidate joined with what it costs.

    Sessions, the service's answers, reports and the screens show these rows. A run keeps
    candidates and costs apart and joins them with ``records_of``.
    """

    cost: Cost = UNKNOWN


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
