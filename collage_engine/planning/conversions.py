"""Conversions between formats, as the search prices them and a placement shows them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from collage_engine.records.candidate import Candidate
from collage_engine.records.format import (
    HOST,
    LAUNCH,
    PLAIN,
    TO_HOST,
    call_constant,
    conversion_constant,
    copy_us,
    differs,
)
from collage_engine.records.graph import GraphRecord, TensorType
from collage_engine.records.placement import Conversion
from collage_engine.search.check import conversions
from collage_engine.search.problem import Problem


def wanted_conversions(
    graph: GraphRecord, candidates: Sequence[Candidate]
) -> dict[int, tuple[tuple[TensorType, str, str], ...]]:
    """Return every conversion of a value that some cover could need, by operator number.

    These lead both ways between plain and each other format in which a candidate takes or gives the
    operator's value.

    Args:
        graph: The model's graph.
        candidates: The candidates.

    Returns:
        The type, the present and the wanted format of each conversion.
    """
    used = {index for node in graph.nodes for index in node.inputs}.union(graph.outputs)
    formats: dict[int, set[str]] = {}
    for candidate in candidates:
        for chosen in (candidate.takes, candidate.gives):
            for number, name in chosen.items():
                formats.setdefault(number, set()).add(name)
    conversions = {}
    for number, names in sorted(formats.items()):
        every = sorted({*names, PLAIN})
        conversions[number] = tuple(
            (value.type, source, target)
            for source, target in itertools.permutations(every, 2)
            for value in graph.nodes[number].results
            if value.index in used
            if differs(value.type, source) or differs(value.type, target)
        )
    return conversions


def format_transitions(
    graph: GraphRecord,
    candidates: Sequence[Candidate],
    constants: Mapping[str, float],
) -> tuple[tuple[int, str, str, float], ...]:
    """Return (operator, from format, to format, microseconds) for the search problem.

    What was not measured is left out, and so cannot be done. All values of an operator are
    converted together; each conversion is a kernel of its own to launch.

    Args:
        graph: The model's graph.
        candidates: The candidates.
        constants: What conversions and copies cost here, by name.
    """
    launch_us = constants.get(LAUNCH, 0.0)
    transitions = []
    for number, changes in wanted_conversions(graph, candidates).items():
        sums: dict[tuple[str, str], float] = {}
        for kind, source, target in changes:
            us = _conversion_us(constants, kind, source, target, launch_us)
            sums[source, target] = sums.get((source, target), 0.0) + us + launch_us
        transitions += [(number, *pair, us) for pair, us in sums.items() if not math.isnan(us)]
    return tuple(transitions)


def _conversion_us(
    constants: Mapping[str, float], kind: TensorType, source: str, target: str, launch_us: float
) -> float:
    """Return what a conversion takes in microseconds; NaN where it is not known.

    Only plain values are copied between device and host.
    """
    if HOST not in (source, target):
        return constants.get(conversion_constant(kind, source, target), float("nan"))
    us = copy_us(constants, kind, target)
    other = source if target == HOST else target
    if differs(kind, other):
        way = (other, PLAIN) if target == HOST else (PLAIN, other)
        us += launch_us + constants.get(conversion_constant(kind, *way), float("nan"))
    return us


def input_copies_us(
    graph: GraphRecord, candidates: Sequence[Candidate], constants: Mapping[str, float]
) -> dict[str, float]:
    """Return what copying the model's inputs to the host takes, for each candidate that runs there.

    In a run on a device the model's inputs are on the device; the search's conversions are of
    operators' values only.

    Args:
        graph: The model's graph.
        candidates: The candidates.
        constants: What copies cost here, by name.

    Returns:
        Microseconds by candidate id; empty where nothing runs on a device.
    """
    if call_constant(TO_HOST) not in constants:
        return {}
    return {
        c.id: sum(
            copy_us(constants, value.type, HOST)
            for value in graph.parameters
            if any(value.index in graph.nodes[number].inputs for number in c.nodes)
        )
        for c in candidates
        if not c.instance.architecture
    }


def conversions_of(problem: Problem, cover: Sequence[str]) -> tuple[Conversion, ...]:
    """Return what a cover converts, with what the problem says it costs."""
    chosen = {str(c.id): c for c in problem.candidates}
    parts = [chosen[name] for name in cover]
    if not any(part.takes or part.gives for part in parts):
        return ()
    return tuple(
        Conversion(node=node, source=have, target=want, us=us)
        for (node, have, want), us in conversions(problem, parts).items()
    )
