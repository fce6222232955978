"""What each pin costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.search.pins import describe
from collage_engine.search.problem import Verdict
from collage_engine.wording import constraints as say
from collage_engine.wording.amounts import time_text

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
            outcome = say.TOO_WIDE_FOR_A_PRICE
            verdicts.append(_honoured(index, pin, outcome))
            continue
        rest = [p for other, p in enumerate(pins) if other != index]
        limit = share if search.solver.too_wide else None
        without = search.find(rest, regrets=False, time_limit_s=limit)
        if without.optimal and without.cost is not None:
            price = search.difference_us(solution.cost, without.cost)
            if price > 0:
                outcome = say.HONOURED_AT.format(price=time_text(price))
            elif set(solution.cover) == set(without.cover):
                outcome = say.HONOURED_ANYWAY
            else:
                outcome = say.HONOURED_FREE
            verdicts.append(_honoured(index, pin, outcome, price))
        else:
            outcome = say.NO_TIME_FOR_A_PRICE
            verdicts.append(_honoured(index, pin, outcome))
    return tuple(verdicts)


def _honoured(index: int, pin: ProblemPin, outcome: str, price: float | None = None) -> Verdict:
    reason = say.VERDICT.format(what=describe(pin), outcome=outcome)
    return Verdict(pin=index, state="honoured", price_us=price, reason=reason)
