"""Turns candidates with their costs into a search problem, and its covers into placements.

The room imports records, sessions and the search only, so that the process that answers requests
can search again after a pin without TVM and without the child that runs the pipeline.

Transitions from one partition to the next become pair costs. Where a run has several devices, pins
rule candidates out and the search chooses, with copies as transitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from collage_engine.planning.conversions import format_transitions, input_copies_us
from collage_engine.planning.deployment_limits import runtime_limits
from collage_engine.records.candidate import Candidate, CostTable
from collage_engine.records.format import CALL, LAUNCH, PAIR, split_pair
from collage_engine.records.graph import GraphRecord
from collage_engine.records.pin import Pin, PinVerdict
from collage_engine.records.placement import Placement, partition_of
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
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


def make_problem(
    graph: GraphRecord,
    candidates: Sequence[Candidate],
    costs: CostTable,
    pins: Sequence[Pin],
    constants: Mapping[str, float],
    settings: RunSettings,
) -> Problem:
    """Return the search problem of candidates and their costs.

    Args:
        graph: The model; its operators, numbered 0…N−1, are the problem's nodes.
        candidates: The candidates; their toolchain instances are the problem's toolchains.
        costs: What is known of the candidates' costs.
        pins: What the user demands of the cover.
        constants: What launches, transitions and conversions cost here, and what the runtimes
            weigh, by the names that the rooms which measure them use.
        settings: The run's deployment limits and order of toolchains.
    """
    inputs = graph.operator_inputs()
    besides_us = input_copies_us(graph, candidates, constants)
    if CALL in constants:  # every cover has it once: the search leaves it out
        whole = [c.id for c in candidates if len(c.nodes) == len(graph.nodes)]
        besides_us |= {name: besides_us.get(name, 0.0) - constants[CALL] for name in whole}
    return Problem(
        nodes=tuple(
            ProblemNode(id=k, op=node.op, inputs=inputs[k]) for k, node in enumerate(graph.nodes)
        ),
        outputs=tuple(sorted(graph.producers(graph.outputs))),
        candidates=tuple(
            problem_candidate(c, costs, besides_us.get(c.id, 0.0)) for c in candidates
        ),
        transitions=Transitions(
            launch_us=constants.get(LAUNCH, 0.0),
            pairs=transitions(constants, {c.instance for c in candidates}),
            formats=format_transitions(graph, candidates, constants, constants.get(LAUNCH, 0.0)),
        ),
        priority=_priority(candidates, settings),
        pins=tuple(problem_pin(pin) for pin in pins),
        limits=runtime_limits(settings, constants),
    )


def _priority(candidates: Sequence[Candidate], settings: RunSettings) -> tuple[str, ...]:
    """Return the instances in the user's order of toolchains, each toolchain's default first."""
    order = {name: index for index, name in enumerate(settings.toolchains)}
    instances = dict.fromkeys(c.instance.id for c in candidates)
    by_id = {c.instance.id: c.instance for c in candidates}
    return tuple(
        sorted(
            instances,
            key=lambda i: (
                order.get(by_id[i].toolchain, len(order)),
                by_id[i].toolchain,
                len(by_id[i].config),
                i,
            ),
        )
    )


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
    if pin.kind == "on":
        return ProblemPin(nodes=pin.nodes, toolchain=pin.toolchain)
    if pin.kind == "never":
        return ProblemPin(nodes=pin.nodes, not_toolchain=pin.toolchain)
    if pin.kind == "exactly":
        return ProblemPin(nodes=pin.nodes, exactly=True, toolchain=pin.toolchain)
    if pin.kind == "device":
        return ProblemPin(nodes=pin.nodes, device=pin.device)
    return ProblemPin(nodes=pin.nodes, together=True)


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
