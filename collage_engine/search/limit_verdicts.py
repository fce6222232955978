"""What each limit on runtimes costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage_engine.search.limited_search import RuntimeSets, solve_within_limits
from collage_engine.search.limits import (
    LimitName,
    RuntimeLimitVerdict,
    limits_in_words,
    without_limit,
)
from collage_engine.wording import constraints as say
from collage_engine.wording.amounts import time_text

if TYPE_CHECKING:
    from collage_engine.search.problem import ProblemPin
    from collage_engine.search.search import Search
    from collage_engine.search.solver import Solution


def verdicts_of_limits(
    search: Search, pins: Sequence[ProblemPin], solution: Solution
) -> tuple[RuntimeLimitVerdict, ...]:
    """Return what every limit costs.

    That is the least cost with it less the least without it, pins and other limits kept.

    Args:
        search: A search of the problem.
        pins: The pins that hold.
        solution: The least-cost cover under all pins and limits.
    """
    sets = search.runtime_sets
    if sets is None or solution.cost is None:
        return ()
    verdicts = []
    for name, text in limits_in_words(sets.limits).items():
        price, outcome = _price_of(search, sets, name, pins, solution)
        verdicts.append(
            RuntimeLimitVerdict(
                limit=name,
                text=text,
                state="honoured",
                price_us=price,
                reason=say.VERDICT.format(what=text, outcome=outcome),
            )
        )
    return tuple(verdicts)


def _price_of(
    search: Search,
    sets: RuntimeSets,
    name: LimitName,
    pins: Sequence[ProblemPin],
    solution: Solution,
) -> tuple[float | None, str]:
    """Return what a limit costs in microseconds, None when it is not known, and that in words."""
    assert solution.cost is not None
    free: Solution | None = None
    if solution.optimal:
        rest = RuntimeSets(search.problem, without_limit(sets.limits, name))
        free = solve_within_limits(search.restricted(pins), rest, regrets=False)
    if free is None or not free.optimal or free.cost is None:
        return None, say.TOO_WIDE_FOR_A_PRICE
    price = search.difference_us(solution.cost, free.cost)
    if price <= 0:
        return price, say.HONOURED_FREE
    total = search.to_us(free.cost)
    if total <= 0:
        return price, say.HONOURED_AT.format(price=time_text(price))
    share = f"{100 * price / total:.1f}"
    return price, say.HONOURED_AT_SHARE.format(price=time_text(price), share=share)
