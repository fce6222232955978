"""What became of pins and limits: what each costs, or why they cannot hold together.

A constraint costs the least cost with it less the least cost without it, the others kept.

A *conflict* is a minimal set of pins and limits that leaves no cover: none of it can go without
there being one. It is found by QuickXplain (Junker 2004, "QUICKXPLAIN: preferred explanations and
relaxations for over-constrained problems", AAAI) over pins and limits together, since pins alone,
limits alone, or some of both may contradict each other. What remains when a conflict is taken away
may contain another one, which is then found as well; so conflicts are disjoint.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from collage_engine.records.pin import LimitVerdict
from collage_engine.search.limits import (
    LimitName,
    RuntimeLimits,
    limits_in_words,
    only_limits,
)
from collage_engine.search.problem import (
    Answer,
    Conflict,
    Infeasible,
    Verdict,
    describe,
    nodes_in_words,
)
from collage_engine.search.search import RuntimeSets, Search
from collage_engine.wording import sentences as say
from collage_engine.wording.amounts import time_text

if TYPE_CHECKING:
    from collage_engine.search.label_setting import Solution
    from collage_engine.search.problem import ProblemPin


def verdicts_of_pins(
    search: Search, pins: Sequence[ProblemPin], solution: Solution
) -> tuple[Verdict, ...]:
    """Return what every pin costs.

    Args:
        search: A search of the problem.
        pins: The pins that hold.
        solution: The least-cost cover under all pins and limits.
    """

    def verdict(index: int, pin: ProblemPin) -> Verdict:
        rest = [*pins[:index], *pins[index + 1 :]]
        price, outcome = _price(search, solution, lambda: search.find(rest, regrets=False))
        text = describe(pin)
        return Verdict(pin=index, text=text, state="honoured", price_us=price, reason=outcome)

    return tuple(verdict(index, pin) for index, pin in enumerate(pins))


def verdicts_of_limits(
    search: Search, pins: Sequence[ProblemPin], solution: Solution
) -> tuple[LimitVerdict, ...]:
    """Return what every limit costs.

    Args:
        search: A search of the problem.
        pins: The pins that hold.
        solution: The least-cost cover under all pins and limits.
    """
    limits = search.runtime_sets.limits
    texts = limits_in_words(limits)

    def verdict(name: LimitName, text: str) -> LimitVerdict:
        rest = RuntimeSets(search.problem, only_limits(limits, texts.keys() - {name}))
        price, outcome = _price(
            search, solution, lambda: search.find(pins, sets=rest, regrets=False), as_share=True
        )
        return LimitVerdict(
            constraint=name, text=text, state="honoured", price_us=price, reason=outcome
        )

    return tuple(itertools.starmap(verdict, texts.items()))


def _price(
    search: Search, solution: Solution, solve: Callable[[], Solution], *, as_share: bool = False
) -> tuple[float | None, str]:
    """Return what a constraint costs in microseconds, None where it is not known, and in words.

    Args:
        search: The search.
        solution: The least-cost cover with the constraint.
        solve: Finds the least-cost cover without it.
        as_share: Whether the words name the price's share of the least cost without it, too.
    """
    free = solve() if solution.optimal else solution
    if solution.cost is None or free.cost is None or not free.optimal:
        return None, "but there was no time to say what it costs exactly"
    price, total = search.difference_us(solution.cost, free.cost), search.to_us(free.cost)
    if price <= 0:
        same = set(solution.cover) == set(free.cover)
        return price, say.HONOURED_ANYWAY if same else "costs nothing"
    share = f" ({100 * price / total:.1f} %)" if as_share and total > 0 else ""
    return price, f"costs {time_text(price)}{share}"


Constraint = int | LimitName
"""The index of a pin, or the name of a limit."""


def explain_infeasible(search: Search, pins: Sequence[ProblemPin], started: float) -> Answer:
    """Return the answer that says why there is no cover.

    The reason is nodes that nothing covers, or conflicts among pins and limits.

    Args:
        search: A search of the problem, which has no cover under these pins and its limits.
        pins: The pins that hold.
        started: When the search began, in :func:`time.perf_counter` seconds.
    """
    filter_ = _ConflictFilter(search, list(pins))
    conflicts = filter_.disjoint_conflicts()
    if conflicts:
        first, *further = conflicts
        infeasible = Infeasible(**msgspec.structs.asdict(first), further=tuple(further))
    else:
        infeasible = _infeasible_by_itself(search)
    texts = limits_in_words(search.runtime_sets.limits)
    at_fault = {c: conflict for conflict in conflicts for c in (*conflict.pins, *conflict.limits)}

    def of_pin(index: int, pin: ProblemPin) -> Verdict:
        if (conflict := at_fault.get(index)) is None:
            reason = "there is no placement to judge it by"
            return Verdict(pin=index, text=describe(pin), state="pending", reason=reason)
        return Verdict(
            pin=index,
            text=describe(pin),
            state="infeasible",
            reason=conflict.reason,
            contradicts=tuple(other for other in conflict.pins if other != index),
        )

    def of_limit(name: LimitName, text: str) -> LimitVerdict:
        if (conflict := at_fault.get(name)) is None:
            return LimitVerdict(constraint=name, text=text, state="pending")
        reason = conflict.reason
        return LimitVerdict(constraint=name, text=text, state="infeasible", reason=reason)

    return Answer(
        verdicts=tuple(itertools.starmap(of_pin, enumerate(pins))),
        limit_verdicts=tuple(itertools.starmap(of_limit, texts.items())),
        infeasible=infeasible,
        seconds=time.perf_counter() - started,
    )


@dataclass
class _ConflictFilter:
    """Finds the conflicts of a problem that has no cover under its pins and limits."""

    search: Search
    pins: list[ProblemPin]
    undecided: bool = field(default=False, init=False)
    """Whether, since it was last reset, there was no time to decide if a set leaves a cover."""

    def disjoint_conflicts(self) -> list[Conflict]:
        """Return disjoint conflicts; none where there is no cover without pins and limits."""
        # Pins come first: of several conflicts the first one found is among the first.
        limits = limits_in_words(self.search.runtime_sets.limits)
        rest: list[Constraint] = [*range(len(self.pins)), *limits]
        if not rest or self._leaves_no_cover([]):
            return []
        found: list[Conflict] = []
        while not found or self._leaves_no_cover(rest):
            self.undecided = False
            core = self._minimal([], [], rest)
            found.append(self._described(core))
            rest = [constraint for constraint in rest if constraint not in core]
        return found

    def _minimal(
        self, kept: list[Constraint], added: list[Constraint], rest: list[Constraint]
    ) -> list[Constraint]:
        """Return a minimal part of ``rest`` that leaves no cover together with ``kept``.

        Args:
            kept: Constraints that hold.
            added: Those of them that the caller has just added.
            rest: Constraints that leave no cover together with ``kept``.
        """
        if added and self._leaves_no_cover(kept):
            return []
        if len(rest) == 1:
            return rest
        half = len(rest) // 2
        one, two = rest[:half], rest[half:]
        of_two = self._minimal([*kept, *one], one, two)
        of_one = self._minimal([*kept, *of_two], of_two, one)
        return [*of_one, *of_two]

    def _split(self, constraints: Sequence[Constraint]) -> tuple[list[ProblemPin], RuntimeSets]:
        """Return the pins, and what the limits among the constraints allow."""
        pins = [self.pins[c] for c in constraints if isinstance(c, int)]
        names = [c for c in constraints if not isinstance(c, int)]
        limits = only_limits(self.search.runtime_sets.limits, names)
        return pins, RuntimeSets(self.search.problem, limits)

    def _leaves_no_cover(self, constraints: Sequence[Constraint]) -> bool:
        """Tell whether it is proved that no cover keeps to these pins and limits."""
        pins, sets = self._split(constraints)
        found = self.search.find(pins, sets=sets, regrets=False)
        self.undecided = self.undecided or not (found.cost is not None or found.decided)
        return found.decided and found.cost is None

    def _described(self, core: Sequence[Constraint]) -> Conflict:
        """Return a conflict with its sentence and with the nodes for which nothing is left."""
        pins, sets = self._split(core)
        # Of several sets of runtimes each leaves other nodes uncovered: none of them is named.
        excluded = sets.excluded(sets.maximal[0]) if len(sets.maximal) == 1 else []
        nodes = tuple(self.search.uncovered(self.search.allowed(pins, excluded)))
        names: tuple[LimitName, ...] = tuple(c for c in core if not isinstance(c, int))
        words = limits_in_words(sets.limits)
        text = " and ".join(_with_context(name, words, sets.limits) for name in names)
        reason = f"no placement keeps to {' and '.join(filter(None, [text, *map(describe, pins)]))}"
        if nodes:
            reason = f"{reason} (no candidate is left for {nodes_in_words(nodes)})"
        elif not names:
            reason = f"{reason} ({say.NO_COMBINATION})"
        if self.undecided:
            reason = f"{reason}; there was no time to find out whether fewer of these are enough"
        return Conflict(
            reason=reason,
            pins=tuple(sorted(c for c in core if isinstance(c, int))),
            nodes=nodes,
            limits=names,
            limits_text=text,
        )


def _infeasible_by_itself(search: Search) -> Infeasible:
    """Return why there is no cover even without pins and limits."""
    nodes = tuple(search.uncovered(search.allowed([])))
    if nodes:
        reason = f"no measured candidate covers {nodes_in_words(nodes)}"
    else:
        reason = (
            "every node has measured candidates, but no combination of them is a placement: "
            "partitions would overlap or wait for each other, or a conversion does not exist"
        )
    return Infeasible(reason=reason, nodes=nodes)


def _with_context(name: LimitName, texts: Mapping[LimitName, str], limits: RuntimeLimits) -> str:
    """Return a limit that nothing keeps to in words, with what there is instead."""
    most, least = limits.max_bytes, limits.base_bytes
    if name == "max_bytes" and most is not None and least > most:
        return f"{texts[name]} (the weights by themselves take {least / 1e6:.4g} MB)"
    known = sorted(
        {licence for runtime in limits.runtimes.values() for licence in runtime.licences}
    )
    if name == "licences" and known:
        return f"{texts[name]} (here there are {', '.join(known)})"
    return texts[name]
