"""What became of each pin: its price, or what it contradicts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from collage_engine.search.limit_verdicts import infeasible_limits, verdicts_without_cover
from collage_engine.search.pins import NODES_NAMED, describe
from collage_engine.search.problem import Answer, Infeasible, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.problem import ProblemPin
    from collage_engine.search.search import Search
    from collage_engine.search.solver import Solution


def verdicts_of_pins(
    search: Search, pins: Sequence[ProblemPin], solution: Solution
) -> tuple[Verdict, ...]:
    """Return what every pin costs.

    That is the least cost with it less the least without it, other pins and the limits kept.

    Args:
        search: A search of the problem.
        pins: The pins that hold.
        solution: The least-cost cover under all pins and limits.
    """
    verdicts = []
    assert solution.cost is not None
    # On wide graphs all of them together may take as long again as one search.
    share = search.solver.time_limit_s / max(len(pins), 1)
    for index, pin in enumerate(pins):
        if not solution.optimal:
            outcome = "honoured; the graph is too wide to say what it costs exactly"
            verdicts.append(_honoured(index, pin, outcome))
            continue
        rest = [p for other, p in enumerate(pins) if other != index]
        limit = share if search.solver.too_wide else None
        without = search.find(rest, regrets=False, time_limit_s=limit)
        if without.optimal and without.cost is not None:
            price = search.difference_us(solution.cost, without.cost)
            if price > 0:
                outcome = f"honoured, costs {price:.3g} us"
            elif set(solution.cover) == set(without.cover):
                outcome = "honoured; the best placement does that anyway"
            else:
                outcome = "honoured, costs nothing"
            verdicts.append(_honoured(index, pin, outcome, price))
        else:
            outcome = "honoured; there was no time to say what it costs exactly"
            verdicts.append(_honoured(index, pin, outcome))
    return tuple(verdicts)


def _honoured(index: int, pin: ProblemPin, outcome: str, price: float | None = None) -> Verdict:
    reason = f"{describe(pin)}: {outcome}"
    return Verdict(pin=index, state="honoured", price_us=price, reason=reason)


def explain_infeasible(search: Search, pins: Sequence[ProblemPin], started: float) -> Answer:
    """Return the answer that says why there is no cover.

    The reason is nodes that nothing covers, or a minimal set of pins and limits that cannot hold
    together, found by a deletion filter: what remains is infeasible, and feasible without any one
    of it.

    Args:
        search: A search of the problem, which has no cover under these pins.
        pins: The pins that hold.
        started: When the search began, in :func:`time.perf_counter` seconds.
    """
    infeasible = infeasible_limits(search, pins)
    if infeasible is None:
        if not _feasible(search, []):
            infeasible = _infeasible_without_pins(search)
        else:
            core = list(range(len(pins)))
            for index in range(len(pins)):
                rest = [i for i in core if i != index]
                if not _feasible(search, [pins[i] for i in rest]):
                    core = rest
            infeasible = _contradiction(search, pins, core)
    verdicts = []
    for index, pin in enumerate(pins):
        if index in infeasible.pins:
            others = tuple(i for i in infeasible.pins if i != index)
            verdicts.append(
                Verdict(pin=index, state="infeasible", reason=infeasible.reason, contradicts=others)
            )
        else:
            why = f"{describe(pin)}: it is not decided, since there is no placement to judge it by"
            verdicts.append(Verdict(pin=index, state="pending", reason=why))
    limits = search.problem.limits
    return Answer(
        verdicts=tuple(verdicts),
        limit_verdicts=() if limits is None else verdicts_without_cover(limits, infeasible),
        infeasible=infeasible,
        seconds=time.perf_counter() - started,
    )


def _feasible(search: Search, pins: Sequence[ProblemPin]) -> bool:
    """Tell whether a cover exists, or at least none was proved not to exist."""
    solution = search.find_remembered(pins)
    return solution.cost is not None or not solution.decided


def _contradiction(search: Search, pins: Sequence[ProblemPin], core: list[int]) -> Infeasible:
    nodes = tuple(search.solver.uncovered(search.allowed([pins[i] for i in core])))
    texts = "; ".join(describe(pins[i]) for i in core)
    if len(core) == 1:
        reason = f"the pin cannot be honoured: {texts}"
    else:
        reason = f"these pins cannot hold together: {texts}"
    if nodes:
        reason += f" (no candidate is left for {_nodes_in_words(nodes)})"
    else:
        reason += " (every node has candidates left, but no combination of them is a placement)"
    return Infeasible(reason=reason, pins=tuple(core), nodes=nodes)


def _infeasible_without_pins(search: Search) -> Infeasible:
    nodes = tuple(search.solver.uncovered(search.allowed([])))
    if nodes:
        reason = f"no measured candidate covers {_nodes_in_words(nodes)}"
    else:
        nodes = search.solver.furthest_uncovered()
        reason = (
            "every node has measured candidates, but no combination of them is a placement: "
            "partitions would overlap or wait for each other, or a conversion does not exist"
        )
        if nodes:
            reason += f"; the search gets no further than {_nodes_in_words(nodes)}"
    return Infeasible(reason=reason, nodes=nodes)


def _nodes_in_words(nodes: Sequence[int]) -> str:
    """Return ``node 3`` or ``nodes 3, 4 and 9 more``."""
    shown = ", ".join(map(str, nodes[:NODES_NAMED]))
    left = len(nodes) - NODES_NAMED
    more = f" and {left} more" if left > 0 else ""
    return ("node " if len(nodes) == 1 else "nodes ") + shown + more
