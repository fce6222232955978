"""What each limit on runtimes costs, or which limits leave no cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from collage_engine.search.limited_search import RuntimeSets, branch_and_bound
from collage_engine.search.limits import (
    LimitName,
    RuntimeLimits,
    RuntimeLimitVerdict,
    limits_in_words,
    without_limit,
)
from collage_engine.search.problem import Infeasible

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
                reason=f"{text}: {outcome}",
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
        free = branch_and_bound(search.restricted(pins), rest).best
    if free is None or not free.optimal or free.cost is None:
        return None, "honoured; the graph is too wide to say what it costs exactly"
    price = search.difference_us(solution.cost, free.cost)
    if price <= 0:
        return price, "honoured, costs nothing"
    total = search.to_us(free.cost)
    share = f" ({100 * price / total:.1f} %)" if total > 0 else ""
    return price, f"honoured, costs {price:.3g} µs{share}"


def infeasible_limits(search: Search, pins: Sequence[ProblemPin]) -> Infeasible | None:
    """Return a minimal set of limits, and of pins, that leave no cover.

    The set is found by deletion: every limit, then every pin, that can go without there being a
    cover then goes.

    Args:
        search: A search of the problem, which has no cover under these pins and its limits.
        pins: The pins that hold.

    Returns:
        What contradicts each other; None when there is no cover without limits either.
    """
    sets = search.runtime_sets
    if sets is None or search.restricted(pins)([]).cost is None:
        return None
    texts = limits_in_words(sets.limits)

    def feasible(kept: Sequence[LimitName], some: Sequence[ProblemPin]) -> bool:
        fewer = RuntimeSets(search.problem, _only(sets.limits, kept))
        return branch_and_bound(search.restricted(some), fewer).feasible

    core = list(texts)
    for name in texts:
        rest = [k for k in core if k != name]
        if not feasible(rest, pins):
            core = rest
    chosen = list(range(len(pins)))
    for index in range(len(pins)):
        fewer = [i for i in chosen if i != index]
        if not feasible(core, [pins[i] for i in fewer]):
            chosen = fewer
    kept = _only(sets.limits, core)
    remaining = RuntimeSets(search.problem, kept)
    masks = list(islice(remaining.maximal_sets(), 2))
    nodes: list[int] = []
    if len(masks) == 1:
        allowed = search.allowed([pins[i] for i in chosen], remaining.excluded(masks[0]))
        nodes = search.solver.uncovered(allowed)
    return Infeasible(
        reason=f"no placement keeps to {' and '.join(_with_context(k, texts, kept) for k in core)}"
        + (" under the pins" if chosen else ""),
        pins=tuple(chosen),
        nodes=tuple(nodes),
        limits=tuple(core),
    )


def _only(limits: RuntimeLimits, kept: Sequence[LimitName]) -> RuntimeLimits:
    """Return the same limits with these ones alone."""
    for name in limits_in_words(limits):
        if name not in kept:
            limits = without_limit(limits, name)
    return limits


def _with_context(name: LimitName, texts: Mapping[LimitName, str], limits: RuntimeLimits) -> str:
    """Return a limit that nothing keeps to in words, with what there is instead."""
    most, least = limits.max_bytes, limits.base_bytes
    if name == "max_bytes" and most is not None and least > most:
        return f"{texts[name]} (the weights by themselves take {least / 1e6:.4g} MB)"
    known = sorted({licence for each in limits.runtimes.values() for licence in each.licences})
    if name == "licences" and known:
        return f"{texts[name]} (here there are {', '.join(known)})"
    return texts[name]


def verdicts_without_cover(
    limits: RuntimeLimits, infeasible: Infeasible
) -> tuple[RuntimeLimitVerdict, ...]:
    """Return the verdicts of limits where there is no cover."""
    return tuple(
        RuntimeLimitVerdict(
            limit=name,
            text=text,
            state="infeasible" if name in infeasible.limits else "pending",
            reason=infeasible.reason if name in infeasible.limits else None,
        )
        for name, text in limits_in_words(limits).items()
    )
