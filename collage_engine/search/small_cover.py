"""A heuristic that tells at once that a problem is feasible, by a cover of the smallest candidates.

Whether there is any cover is asked before anything is measured, when most often every operator has
a candidate of its own. For a model of 690 operators with many branches this takes 1 s, where a
search for the least-cost cover takes 35 (``tests/benchmarks/RESULTS.md``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from collage_engine.search.check import check_cover
from collage_engine.search.limits import violated_limits
from collage_engine.search.pins import forbidden_by

if TYPE_CHECKING:
    from collage_engine.search.problem import CandidateId, Problem, ProblemCandidate


def small_cover(problem: Problem) -> tuple[CandidateId, ...] | None:
    """Return a cover of small candidates under the pins and limits, whatever it costs.

    Nodes that no candidate may hold alone, as where a pin keeps them together, get the smallest
    candidate first; all others stay alone. Toolchains that can run many nodes alone are preferred,
    so that the cover uses few of them.

    Args:
        problem: The problem.

    Returns:
        The ids of the cover's candidates; None where this finds no cover, though there may be one.
    """
    alone: dict[int, list[ProblemCandidate]] = defaultdict(list)
    holding: dict[int, list[ProblemCandidate]] = defaultdict(list)
    for candidate in _allowed(problem):
        if len(candidate.nodes) == 1:
            alone[candidate.nodes[0]].append(candidate)
        else:
            for node in candidate.nodes:
                holding[node].append(candidate)
    can_run = Counter(c.toolchain for candidates in alone.values() for c in candidates)
    chosen: list[ProblemCandidate] = []
    covered: set[int] = set()
    nodes = [node.id for node in problem.nodes]
    for node in sorted(nodes, key=lambda node: node in alone):
        if node in covered:
            continue
        if node in alone:
            best = max(alone[node], key=lambda c: can_run[c.toolchain])
        else:
            fitting = [c for c in holding[node] if covered.isdisjoint(c.nodes)]
            if not fitting:
                return None
            best = min(fitting, key=lambda c: len(c.nodes))
        chosen.append(best)
        covered.update(best.nodes)
    cover = tuple(c.id for c in chosen)
    return cover if isinstance(check_cover(problem, cover), float) else None


def _allowed(problem: Problem) -> list[ProblemCandidate]:
    """Return the candidates that can be chosen and break no pin or limit by themselves."""
    forbidden = {index for pin in problem.pins for index in forbidden_by(problem, pin)}
    limits = problem.limits
    refused = {
        toolchain
        for toolchain in {c.toolchain for c in problem.candidates}
        if limits is not None and violated_limits(limits, limits.runtimes_of(toolchain))
    }
    return [
        c
        for index, c in enumerate(problem.candidates)
        if c.state == "measured" and index not in forbidden and c.toolchain not in refused
    ]
