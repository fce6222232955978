"""Candidates: sub-graphs that a toolchain could run as one partition, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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

    ``median_us``, ``low_us`` (20th percentile) and ``high_us`` (80th) are set when it was measured
    by itself. An invalid cost is infinite and always carries a ``reason``.
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
    in_model_us: Positive | None = None
    """The time within a whole model; None: it is not known."""
    in_model: Literal["", "seen", "predicted"] = ""
    """Whether that was seen there, or predicted from costs that were."""

    @property
    def usable(self) -> bool:
        """Tell whether there is a time."""
        return self.state == "measured"

    @property
    def us(self) -> float | None:
        """Return the time that a search uses: within the model where known, else isolated."""
        return self.median_us if self.in_model_us is None else self.in_model_us

    def after(self, known: Cost) -> Cost:
        """Return this isolated cost with the time within the model that an older one has.

        Args:
            known: The older cost of the same work. Its two times give the ratio.
        """
        if not (known.in_model_us and known.median_us and self.median_us) or self.in_model:
            return self
        us = self.median_us * known.in_model_us / known.median_us
        return msgspec.structs.replace(self, in_model_us=us, in_model=known.in_model)


UNKNOWN = Cost()
"""The cost of a candidate that was not measured."""


def invalid(reason: str, *, wrong_numbers: bool = False) -> Cost:
    """Return the cost of a candidate that cannot be used, for the reason given."""
    return Cost(state="invalid", reason=reason, wrong_numbers=wrong_numbers)


RefusalKind = Literal["judged", "alone", "precision"]


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """One toolchain instance's refusal of one operator.

    The kinds are: ``judged``, the toolchain says in ``detail`` why not; ``alone``, it takes the
    operator, but not by itself; ``precision``, it gains nothing in ``detail``.
    """

    kind: RefusalKind
    operator: str = ""
    """The operator of the dataflow graph: ``nn.conv2d``."""
    detail: str = ""
    """For the kind ``judged`` a sentence of the toolchain's, for others a name; shown as it is."""
    toolchain: str = ""
    """The toolchain's title."""


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


class CandidateRecord(Candidate, frozen=True, kw_only=True, omit_defaults=True):
    """The row of a document about a candidate: the candidate joined with what it costs.

    Sessions, the service's answers, reports and the screens show these rows. A run keeps
    candidates and costs apart and joins them with ``records_of``.
    """

    cost: Cost = UNKNOWN


@dataclass(frozen=True)
class CostTable:
    """Costs by candidate id; a candidate without an entry is unmeasured.

    A table never changes; the methods ``with_…`` return another one.
    """

    costs: Mapping[str, Cost] = field(default_factory=dict)

    def cost(self, candidate: str) -> Cost:
        """Return what is known of a candidate's cost."""
        return self.costs.get(candidate, UNKNOWN)

    def known(self, candidate: str) -> bool:
        """Tell whether the candidate was measured, be it found invalid."""
        return self.cost(candidate).state != "unknown"

    def with_isolated(self, costs: Mapping[str, Cost]) -> CostTable:
        """Return this table with other isolated costs of some candidates, by id."""
        new = {name: cost.after(self.cost(name)) for name, cost in costs.items()}
        return CostTable({**self.costs, **new})

    def with_measured(
        self, candidates: Iterable[Candidate], by_key: Mapping[str, Cost]
    ) -> CostTable:
        """Return the table with costs by measurement key: equal work has the same cost."""
        return self.with_isolated({c.id: by_key[c.key] for c in candidates if c.key in by_key})

    def with_in_model(self, times: Mapping[str, tuple[float, InModelSource]]) -> CostTable:
        """Return this table with these times within the model, in microseconds, and no others."""
        found = {}
        for name, cost in self.costs.items():
            us, source = times.get(name, (None, ""))
            found[name] = msgspec.structs.replace(cost, in_model_us=us, in_model=source)
        return CostTable(found)


def records_of(candidates: Iterable[Candidate], costs: CostTable) -> list[CandidateRecord]:
    """Return the candidates joined with their costs, as documents hold them."""
    return [
        CandidateRecord(**msgspec.structs.asdict(c) | {"cost": costs.cost(c.id)})
        for c in candidates
    ]


def table_of(records: Sequence[CandidateRecord]) -> CostTable:
    """Return the costs that rows of a document hold."""
    return CostTable({r.id: r.cost for r in records})
