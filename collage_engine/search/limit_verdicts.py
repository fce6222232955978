"""What a limit on runtimes costs, or which limits leave no cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from collage_engine.search.constraints import Limits, branch
from collage_engine.search.limits import (
    ConstraintName,
    Constraints,
    ConstraintVerdict,
    in_words,
)
from collage_engine.search.problem import Infeasible

if TYPE_CHECKING:
    from collage_engine.search.problem import ProblemPin
    from collage_engine.search.search import Found, Search


def verdicts_within(
    search: Search, pins: Sequence[ProblemPin], found: Found
) -> tuple[ConstraintVerdict, ...]:
    """What every limit costs: the least cover with it less the least without it, others kept."""
    limits = search.limits
    if limits is None or found.least is None:
        return ()
    verdicts = []
    for kind, text in in_words(limits.constraints).items():
        rest = Limits(search.problem, without(limits.constraints, kind))
        free = branch(search, rest, list(pins))[0] if found.optimal else None
        price: float | None = None
        share = ""
        if free is not None and free.optimal and found.optimal and free.least is not None:
            price = search.difference_us(found.least, free.least)
            total = search.to_us(free.least)
            share = f" ({100 * price / total:.1f} %)" if total > 0 else ""
        if price is None:
            told = "honoured; the graph is too wide to say what it costs exactly"
        elif price > 0:
            told = f"honoured, costs {price:.3g} us{share}"
        else:
            told = "honoured, costs nothing"
        verdicts.append(
            ConstraintVerdict(
                constraint=kind,
                text=text,
                state="honoured",
                price_us=price,
                reason=f"{text}: {told}",
            )
        )
    return tuple(verdicts)


def blamed(search: Search, pins: Sequence[ProblemPin]) -> Infeasible | None:
    """The limits (and pins) that leave no cover; None when there is none without limits either."""
    limits = search.limits
    if limits is None or search.find_shut(pins, [], False).least is None:
        return None

    texts = in_words(limits.constraints)

    def feasible(kinds: Sequence[ConstraintName], some: Sequence[ProblemPin]) -> bool:
        kept = limits.constraints
        for kind in texts:
            if kind not in kinds:
                kept = without(kept, kind)
        best, _, _, decided = branch(search, Limits(search.problem, kept), list(some))
        return best is not None or not decided

    core = list(texts)
    for kind in texts:
        rest = [k for k in core if k != kind]
        if not feasible(rest, pins):
            core = rest
    chosen = list(range(len(pins)))
    for index in range(len(pins)):
        fewer = [i for i in chosen if i != index]
        if not feasible(core, [pins[i] for i in fewer]):
            chosen = fewer
    kept = limits.constraints
    for kind in texts:
        if kind not in core:
            kept = without(kept, kind)
    masks = list(islice(Limits(search.problem, kept).largest(), 2))
    nodes: list[int] = []
    if len(masks) == 1:
        nodes = search.uncovered(search.allowed([pins[i] for i in chosen], limits.shut(masks[0])))
    return Infeasible(
        reason=f"no cover keeps to {' and '.join(_told(kind, texts, kept) for kind in core)}"
        + (" under the pins" if chosen else ""),
        pins=tuple(chosen),
        nodes=tuple(nodes),
        constraints=tuple(core),
    )


def _told(
    kind: ConstraintName, texts: Mapping[ConstraintName, str], constraints: Constraints
) -> str:
    """A limit that nothing keeps to, with what there is instead, where that helps."""
    most, least = constraints.max_bytes, constraints.base_bytes
    if kind == "max_bytes" and most is not None and least > most:
        return f"{texts[kind]} (the weights alone take {least / 1e6:.4g} MB)"
    known = sorted({licence for each in constraints.runtimes.values() for licence in each.licences})
    if kind == "licences" and known:
        return f"{texts[kind]} (here there are {', '.join(known)})"
    return texts[kind]


def refused(constraints: Constraints, found: Infeasible) -> tuple[ConstraintVerdict, ...]:
    """Verdicts of limits where there is no cover."""
    return tuple(
        ConstraintVerdict(
            constraint=kind,
            text=text,
            state="infeasible" if kind in found.constraints else "pending",
            reason=found.reason if kind in found.constraints else None,
        )
        for kind, text in in_words(constraints).items()
    )


def without(constraints: Constraints, kind: ConstraintName) -> Constraints:
    """The same without one limit."""
    return msgspec.structs.replace(constraints, **{kind: () if kind == "conflicts" else None})
