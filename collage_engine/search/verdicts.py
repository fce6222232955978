"""What became of each pin: its price, or what it contradicts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from collage_engine.search.limit_verdicts import blamed, refused
from collage_engine.search.pins import describe
from collage_engine.search.problem import Answer, Infeasible, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.problem import ProblemPin
    from collage_engine.search.search import Found, Search


def verdicts_of(search: Search, pins: Sequence[ProblemPin], found: Found) -> tuple[Verdict, ...]:
    """Verdicts of pins that all hold, where ``found`` is the cover under all of them."""
    verdicts = []
    assert found.least is not None
    chosen = set(found.cover)
    limit = search.time_limit_s
    for index, pin in enumerate(pins):
        if not found.optimal:
            said = "honoured; the graph is too wide to say what it costs exactly"
            verdicts.append(_honoured(index, pin, said))
            continue
        if search.wide:  # all of them together may take as long again as one search
            search.time_limit_s = limit / len(pins)
        try:
            rest = [p for other, p in enumerate(pins) if other != index]
            without = search.find(rest, regrets=False)
        finally:
            search.time_limit_s = limit
        price: float | None = None
        if without.optimal and without.least is not None:
            price = search.difference_us(found.least, without.least)
            if price > 0:
                said = f"honoured, costs {price:.3g} us"
            elif chosen == set(without.cover):
                said = "honoured, the best cover does that anyway"
            else:
                said = "honoured, costs nothing"
        else:
            said = "honoured; there was no time to say what it costs exactly"
        verdicts.append(_honoured(index, pin, said, price))
    return tuple(verdicts)


def _honoured(index: int, pin: ProblemPin, said: str, price: float | None = None) -> Verdict:
    reason = f"{describe(pin)}: {said}"
    return Verdict(pin=index, state="honoured", price_us=price, reason=reason)


def explain_infeasible(search: Search, pins: Sequence[ProblemPin], started: float) -> Answer:
    """Why there is no cover: nodes, or a minimal set of pins that cannot hold together."""
    limited = blamed(search, pins)
    if limited is not None:
        found = limited
    elif not _feasible(search, []):
        found = _without_pins(search)
    else:
        # Deletion filter: what remains is infeasible, and feasible without any one of it.
        core = list(range(len(pins)))
        for index in range(len(pins)):
            rest = [i for i in core if i != index]
            if not _feasible(search, [pins[i] for i in rest]):
                core = rest
        found = _contradiction(search, pins, core)
    verdicts = []
    for index, pin in enumerate(pins):
        if index in found.pins:
            others = tuple(i for i in found.pins if i != index)
            verdicts.append(
                Verdict(pin=index, state="infeasible", reason=found.reason, contradicts=others)
            )
        else:
            why = f"{describe(pin)}: not decided, there is no cover to judge it by"
            verdicts.append(Verdict(pin=index, state="pending", reason=why))
    constraints = search.problem.constraints
    return Answer(
        verdicts=tuple(verdicts),
        constraints=() if constraints is None else refused(constraints, found),
        infeasible=found,
        seconds=time.perf_counter() - started,
    )


def _feasible(search: Search, pins: Sequence[ProblemPin]) -> bool:
    """Whether a cover exists, or at least none was proved not to (in graphs too wide to tell)."""
    found = search.recall(pins)
    return found.least is not None or not found.decided


def _contradiction(search: Search, pins: Sequence[ProblemPin], core: list[int]) -> Infeasible:
    nodes = tuple(search.uncovered(search.allowed([pins[i] for i in core])))
    said = "; ".join(describe(pins[i]) for i in core)
    if len(core) == 1:
        reason = f"the pin cannot be honoured: {said}"
    else:
        reason = f"these pins cannot hold together: {said}"
    if nodes:
        reason += f" (no candidate is left for {names(nodes)})"
    else:
        reason += " (every node has candidates left, but no combination of them is a cover)"
    return Infeasible(reason=reason, pins=tuple(core), nodes=nodes)


def _without_pins(search: Search) -> Infeasible:
    nodes = tuple(search.uncovered(search.allowed([])))
    if nodes:
        reason = f"no measured candidate covers {names(nodes)}"
    else:
        nodes = search.stuck()
        reason = (
            "every node has measured candidates, but no combination of them is a disjoint "
            "acyclic cover whose conversions exist"
        )
        if nodes:
            reason += f": it gets no further than {names(nodes)}"
    return Infeasible(reason=reason, nodes=nodes)


def names(nodes: Sequence[int]) -> str:
    """``node 3``, ``nodes 3, 4 and 9 more``."""
    shown = ", ".join(map(str, nodes[:8]))
    more = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    return ("node " if len(nodes) == 1 else "nodes ") + shown + more
