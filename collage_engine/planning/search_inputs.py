"""A run's search problem: what it is made of, the problem itself, and placements of its covers.

The room imports records, sessions and the search only, so that the process that answers requests
can search again after a pin without TVM and without the child that runs the pipeline.

Transitions from one partition to the next become pair costs. Where a run has several devices, pins
rule candidates out and the search chooses, with copies as transitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import msgspec

from collage_engine.planning.conversions import (
    conversions_of,
    format_transitions,
    input_copies_us,
)
from collage_engine.planning.deployment_limits import export_refusal, runtime_limits
from collage_engine.records.candidate import Candidate, CandidateRecord, Cost, CostTable, records_of
from collage_engine.records.format import CALL, FREE, LAUNCH, PAIR, split_pair
from collage_engine.records.graph import GraphRecord
from collage_engine.records.pin import Pin, PinVerdict
from collage_engine.records.placement import Placement, partition_of
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.search.api import Search, k_best, reuse, solve
from collage_engine.search.check import check_cover
from collage_engine.search.problem import (
    Answer,
    Problem,
    ProblemCandidate,
    ProblemNode,
    ProblemPin,
    Transitions,
    breaks,
)

RUNNERS_UP = 2
"""Covers beside the best that are shown, and confirmed end to end (a count; chosen)."""
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
        """Return the search problem of the candidates under the run's pins and limits.

        The graph's operators, numbered 0…N−1, are the problem's nodes, and toolchain instances its
        toolchains.
        """
        graph, candidates, constants = self.graph, self.candidates, self.constants
        inputs = graph.operator_inputs()
        besides_us = input_copies_us(graph, candidates, constants)
        if CALL in constants:  # every cover has it once: the search leaves it out
            whole = [c.id for c in candidates if len(c.nodes) == len(graph.nodes)]
            besides_us |= {name: besides_us.get(name, 0.0) - constants[CALL] for name in whole}
        return Problem(
            nodes=tuple(
                ProblemNode(id=k, op=node.op, inputs=inputs[k])
                for k, node in enumerate(graph.nodes)
            ),
            outputs=tuple(sorted(graph.producers(graph.outputs))),
            candidates=tuple(
                problem_candidate(c, self.costs, besides_us.get(c.id, 0.0)) for c in candidates
            ),
            transitions=Transitions(
                launch_us=constants.get(LAUNCH, 0.0),
                pairs=transitions(constants, {c.instance for c in candidates}),
                formats=format_transitions(graph, candidates, constants),
            ),
            priority=self._priority(),
            pins=tuple(problem_pin(pin) for pin in self.pins),
            limits=runtime_limits(self.settings, constants),
        )

    def _priority(self) -> tuple[str, ...]:
        """Return the instances in the user's order of toolchains, each one's default first."""
        order = {name: index for index, name in enumerate(self.settings.toolchains)}

        def place(instance: ToolchainInstance) -> tuple[int, str, int, str]:
            name = instance.toolchain
            return order.get(name, len(order)), name, len(instance.config), instance.id

        instances = sorted({c.instance for c in self.candidates}, key=place)
        return tuple(dict.fromkeys(instance.id for instance in instances))

    def broken_pins(self, cover: Cover) -> frozenset[int]:
        """Return the places of the run's pins that a cover does not keep."""
        parts = [problem_candidate(c, self.costs) for c in cover]
        return broken_pins([problem_pin(pin) for pin in self.pins], parts)

    def why_barred(self, cover: Cover) -> str | None:
        """Return which deployment limit or which pins keep a cover from being exported, if any."""
        why = export_refusal(cover, runtime_limits(self.settings, self.constants))
        broken = self.broken_pins(cover)
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
        problem = self.with_candidates(among.values(), self.costs).problem()
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


def problem_candidate(c: Candidate, costs: CostTable, besides_us: float = 0.0) -> ProblemCandidate:
    """Return a candidate as the search knows it.

    Args:
        c: The candidate.
        costs: Where its cost stands.
        besides_us: Microseconds that it costs in addition, or less, whatever runs around it.
    """
    cost = costs.cost(c.id)
    return ProblemCandidate(
        id=c.id,
        nodes=c.nodes,
        toolchain=c.instance.id,
        cost_us=None if cost.us is None else max(0.0, cost.us + besides_us),
        state=cost.state,
        reason=cost.reason,
        device=c.device,
        takes=c.takes,
        gives=c.gives,
    )


def problem_pin(pin: Pin) -> ProblemPin:
    """Return a user's pin as the search wants it."""
    if pin.kind == "never":
        return ProblemPin(nodes=pin.nodes, not_toolchain=pin.toolchain)
    return ProblemPin(
        nodes=pin.nodes,
        toolchain=pin.toolchain,
        device=pin.device,
        exactly=pin.kind == "exactly",
        together=pin.kind == "together",
    )


def broken_pins(pins: Sequence[ProblemPin], parts: Sequence[ProblemCandidate]) -> frozenset[int]:
    """Return the places of the pins that some partitions do not keep."""
    return frozenset(
        index
        for index, pin in enumerate(pins)
        if any(breaks(part, pin, set(pin.nodes)) for part in parts)
    )


def pin_verdicts(pins: Sequence[Pin], answer: Answer) -> list[PinVerdict]:
    """Return the search's verdicts on pins in the words of the user's pins.

    Args:
        pins: The user's pins, in the order in which they were given to the search.
        answer: The search's answer.

    Returns:
        One verdict for each pin; ``pending`` where the search has none.
    """
    result = [PinVerdict(pin=pin.written, state="pending") for pin in pins]
    for verdict in answer.verdicts:
        result[verdict.pin] = PinVerdict(
            pin=pins[verdict.pin].written,
            state=verdict.state,
            price_us=verdict.price_us,
            reason=verdict.reason,
            contradicts=verdict.contradicts,
        )
    return result


def make_placement(
    graph: GraphRecord,
    cover: Sequence[Candidate],
    costs: CostTable,
    estimated_us: float | None = None,
) -> Placement:
    """Return a cover as a placement that was not measured yet.

    Args:
        graph: The model's graph.
        cover: The cover's candidates, in the order in which they run.
        costs: What is known of the candidates' costs.
        estimated_us: The cover's cost in microseconds.
    """
    names = [call.onnx_nodes for call in graph.nodes]
    owners = graph.node_of_operator
    partitions = tuple(
        msgspec.structs.replace(
            partition_of(index, c, costs.cost(c.id)),
            onnx_nodes=tuple(dict.fromkeys(name for n in c.nodes for name in names[n])),
            node_count=len({owners[n] for n in c.nodes}),
        )
        for index, c in enumerate(cover)
    )
    return Placement(partitions=partitions, estimated_us=estimated_us)


def transitions(
    constants: Mapping[str, float], instances: Iterable[ToolchainInstance]
) -> tuple[tuple[str, str, float], ...]:
    """Return (from, to, microseconds) for pairs of instances, by those of their toolchains.

    In a placement on a device there are none with an instance on the host: there it is copies that
    cost.

    Args:
        constants: A run's constants.
        instances: The instances of the candidates.
    """
    us = {split_pair(name): us for name, us in constants.items() if name.startswith(PAIR)}
    ordered = sorted(instances, key=lambda instance: instance.id)
    able = [instance for instance in ordered if instance.architecture] or ordered
    return tuple(
        (a.id, b.id, us[a.toolchain, b.toolchain])
        for a, b in itertools.product(able, able)
        if (a.toolchain, b.toolchain) in us
    )
