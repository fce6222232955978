"""An independent check of covers: is it one, and what does it cost?

It shares nothing with the search but the problem's definition and what pins and limits mean: it
reads the problem anew, checks disjointness, coverage and acyclicity, and adds the costs up as the
definition in :mod:`collage_engine.search.problem` says, in floating point with :func:`math.fsum`.
"""

from __future__ import annotations

import math
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from collage_engine.search.limits import RuntimeLimits, runtime_of, violated_limits
from collage_engine.search.problem import PLAIN, breaks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.problem import CandidateId, Problem, ProblemCandidate


def check_cover(problem: Problem, cover: Sequence[CandidateId]) -> float | str:
    """Return a cover's cost in microseconds, or the sentence that says why it is none.

    Args:
        problem: The problem.
        cover: Ids of the cover's candidates, in any order.
    """
    by_name = {str(c.id): c for c in problem.candidates}
    chosen: list[ProblemCandidate] = []
    owner: dict[int, int] = {}
    for part, name in enumerate(cover):
        candidate = by_name.get(str(name))
        if candidate is None:
            return f"there is no candidate {name}"
        if candidate.state != "measured" or candidate.cost_us is None:
            return f"candidate {name} is {candidate.state}, so it cannot be chosen"
        for held in candidate.nodes:
            if held in owner:
                return (
                    f"node {held} is in candidate {chosen[owner[held]].id} and in candidate {name}"
                )
        owner.update(dict.fromkeys(candidate.nodes, part))
        chosen.append(candidate)
    for node in problem.nodes:
        if node.id not in owner:
            return f"node {node.id} is in no candidate of the placement"
    for index, pin in enumerate(problem.pins):
        for candidate in chosen:
            if breaks(candidate, pin, set(pin.nodes)):
                return f"candidate {candidate.id} breaks pin {index}"
    for fault in broken_limits(problem, chosen):
        return fault
    cycle = _cycle(problem, owner, len(chosen))
    if cycle is not None:
        return f"candidates {', '.join(str(chosen[part].id) for part in cycle)} wait for each other"
    return _cost(problem, chosen, owner)


def broken_limits(problem: Problem, chosen: Sequence[ProblemCandidate]) -> list[str]:
    """Return in words which limits on runtimes the cover breaks."""
    used = {runtime_of(c.toolchain) for c in chosen}
    return list(violated_limits(problem.limits or RuntimeLimits(), used).values())


def _cycle(problem: Problem, owner: dict[int, int], parts: int) -> list[int] | None:
    """Return partitions that wait for each other in a circle; None if some order can run all."""
    needs: dict[int, set[int]] = {part: set() for part in range(parts)}
    for node in problem.nodes:
        taker = owner[node.id]
        needs[taker].update(owner[producer] for producer in node.inputs)
        needs[taker].discard(taker)
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1]
        return sorted(cycle[:-1])
    return None


def conversions(
    problem: Problem, chosen: Sequence[ProblemCandidate]
) -> dict[tuple[int, str, str], float | None]:
    """Return the conversions that the candidates of a cover need, by node and both formats.

    The value is what one costs in microseconds; None: it cannot be done.
    """
    owner = {node: candidate for candidate in chosen for node in candidate.nodes}
    convert = {(node, have, want): us for node, have, want, us in problem.transitions.formats}
    needed = {(output, PLAIN) for output in problem.outputs}
    for node in problem.nodes:
        taker = owner[node.id]
        needed |= {(i, taker.takes.get(i, PLAIN)) for i in node.inputs if owner[i] is not taker}
    changes = ((value, owner[value].gives.get(value, PLAIN), want) for value, want in needed)
    return {change: convert.get(change) for change in sorted(changes) if change[1] != change[2]}


def _cost(
    problem: Problem, chosen: Sequence[ProblemCandidate], owner: dict[int, int]
) -> float | str:
    """Return what a cover costs, or in words which value cannot be converted."""
    transitions = problem.transitions
    amounts = [c.cost_us for c in chosen if c.cost_us is not None]
    amounts += [transitions.launch_us] * len(chosen)
    handover = {(a, b): us for a, b, us in transitions.pairs}
    crossings = {
        (producer, chosen[owner[producer]].toolchain, chosen[owner[node.id]].toolchain)
        for node in problem.nodes
        for producer in node.inputs
        if owner[producer] != owner[node.id]
    }
    amounts += [handover.get((a, b), 0.0) for _, a, b in crossings]
    for (node_id, have, want), us in conversions(problem, chosen).items():
        if us is None:
            return f"the value of node {node_id} cannot be converted from {have} to {want}"
        amounts.append(us)
    return math.fsum(amounts)
