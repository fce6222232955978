"""What each pin and each limit on runtimes costs.

That is the least cost with it less the least cost without it, the others kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collage_engine.records.pin import LimitVerdict
from collage_engine.search.limited_search import RuntimeSets
from collage_engine.search.limits import limits_in_words, without_limit
from collage_engine.search.problem import Verdict, describe
from collage_engine.wording import sentences as say
from collage_engine.wording.amounts import time_text

if TYPE_CHECKING:
    from collage_engine.search.label_setting import Solution
    from collage_engine.search.problem import ProblemPin
    from collage_engine.search.search import Search

_TOO_WIDE = "but the graph is too wide to say what it costs exactly"


def verdicts_of_pins(
    search: Search, pins: Sequence[ProblemPin], solution: Solution
) -> tuple[Verdict, ...]:
    """Return what every pin costs.

    Args:
        search: A search of the problem.
        pins: The pins that hold.
        solution: The least-cost cover under all pins and limits.
    """
    verdicts = []
    # On wide graphs all of them together may take as long again as one search.
    limit = search.solver.time_limit_s / max(len(pins), 1) if search.solver.too_wide else None
    for index, pin in enumerate(pins):
        price, outcome = None, _TOO_WIDE
        if solution.optimal:
            rest = [*pins[:index], *pins[index + 1 :]]
            free = search.find(rest, regrets=False, time_limit_s=limit)
            price, outcome = _price(search, solution, free)
        text = describe(pin)
        verdicts.append(
            Verdict(pin=index, text=text, state="honoured", price_us=price, reason=outcome)
        )
    return tuple(verdicts)


def verdicts_of_limits(
    search: Search, pins: Sequence[ProblemPin], solution: Solution
) -> tuple[LimitVerdict, ...]:
    """Return what every limit costs.

    Args:
        search: A search of the problem.
        pins: The pins that hold.
        solution: The least-cost cover under all pins and limits.
    """
    sets = search.runtime_sets
    if sets is None:
        return ()
    verdicts = []
    for name, text in limits_in_words(sets.limits).items():
        price, outcome = None, _TOO_WIDE
        if solution.optimal:
            rest = RuntimeSets(search.problem, without_limit(sets.limits, name))
            free = search.within(pins, rest, regrets=False)
            price, outcome = _price(search, solution, free, as_share=True)
        verdicts.append(
            LimitVerdict(
                constraint=name, text=text, state="honoured", price_us=price, reason=outcome
            )
        )
    return tuple(verdicts)


def _price(
    search: Search, solution: Solution, free: Solution, *, as_share: bool = False
) -> tuple[float | None, str]:
    """Return what a constraint costs in microseconds, None where it is not known, and in words.

    Args:
        search: The search.
        solution: The least-cost cover with the constraint.
        free: What was found without it.
        as_share: Whether the words name the price's share of the least cost without it, too.
    """
    if solution.cost is None or free.cost is None or not free.optimal:
        return None, "but there was no time to say what it costs exactly"
    price, total = search.difference_us(solution.cost, free.cost), search.to_us(free.cost)
    if price <= 0:
        same = set(solution.cover) == set(free.cover)
        return price, say.HONOURED_ANYWAY if same else "costs nothing"
    if as_share and total > 0:
        share = f"{100 * price / total:.1f}"
        return price, f"costs {time_text(price)} ({share} %)"
    return price, f"costs {time_text(price)}"
