"""An independent check of covers: is it one, and what does it cost?

It shares nothing with the search but the problem's definition and what pins and limits mean: it
reads the problem anew, checks disjointness, coverage and acyclicity, and adds the costs up as the
definition in :mod:`collage_engine.search.problem` says, in floating point with :func:`math.fsum`.
"""

from __future__ import annotations

import math
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.limits import violated_limits
from collage_engine.search.problem import PLAIN, breaks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.problem import CandidateId, Problem, ProblemCandidate


class CoverCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether some candidates are a cover of a problem under its pins and limits."""

    valid: bool
    """Whether it is a cover that keeps to all pins and limits: no fault was found."""
    cost_us: float | None
    """The cost of the cover; None where it is none."""
    faults: tuple[str, ...]
    """What is wrong, each fault in a sentence."""


def examine_cover(problem: Problem, cover: Sequence[CandidateId]) -> CoverCheck:
    """Find out everything that is wrong with a cover, and what it costs.

    Args:
        problem: The problem.
        cover: Ids of the cover's candidates, in any order.
    """
    chosen, unknown = _chosen(problem, cover)
    owner, twice = _owners(chosen)
    missing = [
        f"node {node.id} is in no candidate of the placement"
        for node in problem.nodes
        if node.id not in owner
    ]
    pins = [
        f"candidate {candidate.id} breaks pin {index}"
        for index, pin in enumerate(problem.pins)
        for candidate in chosen
        if breaks(candidate, pin, set(pin.nodes))
    ]
    cycle = _cycle(problem, owner, len(chosen))
    faults = [*unknown, *twice, *missing, *pins, *broken_limits(problem, chosen)]
    if cycle is not None:
        names = ", ".join(str(chosen[part].id) for part in cycle)
        faults.append(f"candidates {names} wait for each other")
    cost = _cost(problem, chosen, owner) if not (unknown or twice or missing) else None
    if isinstance(cost, str):
        faults.append(cost)
        cost = None
    return CoverCheck(
        valid=not faults,
        cost_us=cost if cycle is None else None,
        faults=tuple(faults),
    )


def check_cover(problem: Problem, cover: Sequence[CandidateId]) -> float | str:
    """Return a cover's cost in microseconds, or the sentence that says why it is none.

    Args:
        problem: The problem.
        cover: Ids of the cover's candidates, in any order.
    """
    examined = examine_cover(problem, cover)
    if examined.faults:
        return examined.faults[0]
    assert examined.cost_us is not None
    return examined.cost_us


def _chosen(
    problem: Problem, cover: Sequence[CandidateId]
) -> tuple[list[ProblemCandidate], list[str]]:
    """Return the candidates of a cover, and in words which of its ids are of none."""
    by_name = {str(c.id): c for c in problem.candidates}
    chosen: list[ProblemCandidate] = []
    faults = []
    for name in cover:
        candidate = by_name.get(str(name))
        if candidate is None:
            faults.append(f"there is no candidate {name}")
        elif candidate.state != "measured" or candidate.cost_us is None:
            faults.append(f"candidate {name} is {candidate.state}, so it cannot be chosen")
        else:
            chosen.append(candidate)
    return chosen, faults


def _owners(chosen: Sequence[ProblemCandidate]) -> tuple[dict[int, int], list[str]]:
    """Return the place of the candidate that holds each node, and which nodes are in two."""
    owner: dict[int, int] = {}
    faults = []
    for part, candidate in enumerate(chosen):
        for held in candidate.nodes:
            if held in owner:
                other = chosen[owner[held]].id
                faults.append(
                    f"node {held} is in candidate {other} and in candidate {candidate.id}"
                )
            else:
                owner[held] = part
    return owner, faults


def broken_limits(problem: Problem, chosen: Sequence[ProblemCandidate]) -> list[str]:
    """Return in words which limits on runtimes the cover breaks."""
    limits = problem.limits
    if limits is None:
        return []
    used = {runtime for c in chosen for runtime in limits.runtimes_of(c.toolchain)}
    return list(violated_limits(limits, used).values())


def _cycle(problem: Problem, owner: dict[int, int], parts: int) -> list[int] | None:
    """Return partitions that wait for each other in a circle; None if some order can run all."""
    needs: dict[int, set[int]] = {part: set() for part in range(parts)}
    for node in problem.nodes:
        taker = owner.get(node.id)
        for producer in node.inputs:
            giver = owner.get(producer)
            if taker is not None and giver is not None and giver != taker:
                needs[taker].add(giver)
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1]
        return sorted(cycle[:-1])
    return None


def _cost(
    problem: Problem, chosen: Sequence[ProblemCandidate], owner: dict[int, int]
) -> float | str:
    """Return what a cover costs, or in words which value cannot be converted."""
    transitions = problem.transitions
    amounts = [c.cost_us for c in chosen if c.cost_us is not None]
    amounts += [transitions.launch_us] * len(chosen)
    handover = {(a, b): us for a, b, us in transitions.pairs}
    convert = {(node, have, want): us for node, have, want, us in transitions.formats}
    crossings: set[tuple[int, str, str]] = set()
    conversions: set[tuple[int, str, str]] = set()
    for node in problem.nodes:
        target = owner[node.id]
        for producer in node.inputs:
            source = owner[producer]
            if source == target:
                continue
            one, other = chosen[source], chosen[target]
            crossings.add((producer, one.toolchain, other.toolchain))
            have, want = one.gives.get(producer, PLAIN), other.takes.get(producer, PLAIN)
            if have != want:
                conversions.add((producer, have, want))
    for output in problem.outputs:
        have = chosen[owner[output]].gives.get(output, PLAIN)
        if have != PLAIN:
            conversions.add((output, have, PLAIN))
    amounts += [handover.get((a, b), 0.0) for _, a, b in crossings]
    for conversion in conversions:
        us = convert.get(conversion)
        if us is None:
            node_id, have, want = conversion
            return f"the value of node {node_id} cannot be converted from {have} to {want}"
        amounts.append(us)
    return math.fsum(amounts)
