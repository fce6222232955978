"""What became of each pin: its price, or what it contradicts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from collage_engine.search.pins import describe
from collage_engine.search.problem import Answer, Infeasible, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collage_engine.search.problem import ProblemPin
    from collage_engine.search.search import Search


def verdicts_of(search: Search, pins: Sequence[ProblemPin], least: int) -> tuple[Verdict, ...]:
    """Verdicts of pins that all hold, where ``least`` is the cost under all of them."""
    verdicts = []
    scale = search.weights.scale
    for index, pin in enumerate(pins):
        without = search.cost([p for other, p in enumerate(pins) if other != index])
        assert without is not None and without <= least
        price = (least // scale - without // scale) / 1e9
        cost = "costs nothing" if price == 0 else f"costs {price:.1f} us"
        verdicts.append(
            Verdict(
                pin=index,
                state="honoured",
                price_us=price,
                reason=f"{describe(pin)}: honoured, {cost}",
            )
        )
    return tuple(verdicts)


def explain_infeasible(search: Search, pins: Sequence[ProblemPin], started: float) -> Answer:
    """Why there is no cover: nodes, or a minimal set of pins that cannot hold together."""
    if search.cost([]) is None:
        found = _without_pins(search)
    else:
        # Deletion filter: what remains is infeasible, and feasible without any one of it.
        core = list(range(len(pins)))
        for index in range(len(pins)):
            rest = [i for i in core if i != index]
            if search.cost([pins[i] for i in rest]) is None:
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
            verdicts.append(
                Verdict(
                    pin=index,
                    state="pending",
                    reason=f"{describe(pin)}: not decided, there is no cover to judge it by",
                )
            )
    return Answer(
        verdicts=tuple(verdicts),
        infeasible=found,
        seconds=time.perf_counter() - started,
    )


def _contradiction(search: Search, pins: Sequence[ProblemPin], core: list[int]) -> Infeasible:
    nodes = tuple(search.uncovered(search.allowed([pins[i] for i in core])))
    said = "; ".join(describe(pins[i]) for i in core)
    if len(core) == 1:
        reason = f"the pin cannot be honoured: {said}"
    else:
        reason = f"these pins cannot hold together: {said}"
    if nodes:
        reason += f" (no candidate is left for {_names(nodes)})"
    else:
        reason += " (every node has candidates left, but none of their combinations is a cover)"
    return Infeasible(reason=reason, pins=tuple(core), nodes=nodes)


def _without_pins(search: Search) -> Infeasible:
    nodes = tuple(search.uncovered(search.allowed([])))
    if nodes:
        reason = f"no measured candidate covers {_names(nodes)}"
    else:
        nodes = search.stuck()
        reason = (
            "every node has measured candidates, but no combination of them is a disjoint "
            f"acyclic cover whose conversions exist: it gets no further than {_names(nodes)}"
        )
    return Infeasible(reason=reason, nodes=nodes)


def _names(nodes: Sequence[int]) -> str:
    shown = ", ".join(map(str, nodes[:8]))
    more = f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    return ("node " if len(nodes) == 1 else "nodes ") + shown + more
