"""Searches a document, and keeps what was found for the next question about it.

A click on a node asks why it runs there, and the next click asks the same of another node. What
both answers rest on (the problem, its least-cost covers, the regrets of all candidates) depends on
candidates, costs, pins and settings only, so it is found out once and kept.

A search adds up the costs of partitions; a run has timed whole placements. What was timed counts
more: the best placement is the measured one where the search expects no better one, and what a
choice costs is a difference of two placements' latencies, measured where they are known.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from collage_engine.planning.infeasible import infeasible_details
from collage_engine.planning.search_inputs import SearchInputs, broken_pins, pin_verdicts
from collage_engine.records.answers import Price, SearchAnswer
from collage_engine.records.candidate import table_of
from collage_engine.records.pin import Pin, PinVerdict
from collage_engine.records.placement import Placement, Run, baseline_placement, noise_us
from collage_engine.records.settings import RunSettings
from collage_engine.search.api import Search, reuse
from collage_engine.search.check import broken_limits, check_cover
from collage_engine.search.problem import Answer, Problem, ProblemCandidate
from collage_engine.store.document import Document
from collage_engine.support.typed import convert
from collage_engine.wording import sentences as say
from collage_engine.wording.amounts import time_text

SAME_US = 1e-6
"""Microseconds by which two sums of the same costs may differ: they are added in another order."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPlacement:
    """A placement that a run has timed end to end."""

    placement: Placement
    """With the time of the run that says most of it."""
    us: float
    """Its latency in microseconds, as it were in the run that all are compared in."""
    broken_pins: frozenset[int]
    """The places of the document's pins that it does not keep."""
    keeps_limits: bool
    expected_us: float | None
    """What the search says that it costs, in microseconds; None where it knows too little."""


@dataclass
class DocumentSearch:
    """The search problem of a document, its answer, and what both were made of."""

    inputs: SearchInputs
    """What the problem is made of in the document. Candidates are records that never change."""
    problem: Problem
    search: Search
    answer: Answer
    """What the search says on costs alone; prices are those of ``PlacementPrices``."""
    placements: list[Placement]
    """The least-cost cover and its runners-up; none without a cover."""
    runs: tuple[Run, ...] = ()
    """The runs whose measured placements take part."""
    base: Run | None = None
    """The run whose moment latencies are of; None: the newest."""
    measured: dict[Hashable, MeasuredPlacement] = field(default_factory=dict)

    @cached_property
    def additive_error_us(self) -> float:
        """Return how much longer the fastest measured placement takes than the search expects.

        It is added to what the search expects of other placements, so that they are compared with
        measured ones at one scale; 0 where the search knows no measured placement.
        """
        with_expectation = [one for one in self.measured.values() if one.expected_us is not None]
        fastest = min(with_expectation, key=lambda one: one.us, default=None)
        return 0.0 if fastest is None else fastest.us - (fastest.expected_us or 0.0)

    def with_time(self, placement: Placement) -> Placement:
        """Return a placement with what it took end to end, where a run has timed it."""
        measured = self.measured.get(placement.identity)
        return placement if measured is None else measured.placement

    def latency_us(self, placement: Placement) -> float | None:
        """Return the latency of a placement in microseconds: measured, or else what is expected.

        It is None where the search does not know what the placement costs.
        """
        known = self.measured.get(placement.identity)
        if known is not None:
            return known.us
        if placement.measured_us is not None:
            return placement.measured_us
        expected = expected_us(placement, self.problem)
        if expected is None:
            expected = placement.estimated_us
        return None if expected is None else expected + self.additive_error_us

    def best_measured(self, without: Collection[int] = ()) -> MeasuredPlacement | None:
        """Return the fastest measured placement that keeps to the limits and pins.

        Args:
            without: Places of pins that it need not keep.
        """
        allowed = frozenset(without)
        eligible = [
            m for m in self.measured.values() if m.keeps_limits and m.broken_pins <= allowed
        ]
        return min(eligible, key=lambda one: one.us, default=None)

    def broken_by(self, placement: Placement) -> frozenset[int]:
        """Return the places of the pins that a placement does not keep."""
        measured = self.measured.get(placement.identity)
        if measured is not None:
            return measured.broken_pins
        return broken_pins(self.problem.pins, problem_parts(placement))

    @cached_property
    def best(self) -> Placement | None:
        """Return the best placement under the pins and limits; None where there is none.

        It is the search's, unless one that was measured is faster than that is expected to be.
        """
        searched, measured = next(iter(self.placements), None), self.best_measured()
        us = math.inf if searched is None else self.latency_us(searched)
        if measured is not None and us is not None and measured.us <= us:
            return measured.placement
        return searched

    def least_us(self, without: int) -> float | None:
        """Return the least latency without one of the pins, in microseconds; None: not known.

        Args:
            without: The place of the pin.
        """
        measured = self.best_measured((without,))
        if measured is not None:
            return measured.us  # a price is measured against measured where it can be
        price = next((v.price_us for v in self.answer.verdicts if v.pin == without), None)
        if price is not None and self.answer.cost_us is not None:
            return self.answer.cost_us - price + self.additive_error_us
        return None


class PlacementPrices:
    """What choices cost against one placement, the one that is shown.

    A price is the latency of the best placement with a choice less that of the shown placement,
    in microseconds: measured where both were measured, else expected.
    """

    def __init__(self, search: DocumentSearch, shown: Placement) -> None:
        self._found, self._shown = search, shown
        self.us = search.latency_us(shown)

    @cached_property
    def _measured(self) -> dict[str, MeasuredPlacement]:
        """Return the fastest measured placement with a candidate, by candidate id."""
        fastest: dict[str, MeasuredPlacement] = {}
        for one in self._found.measured.values():
            if one.keeps_limits and not one.broken_pins:
                for name in one.placement.candidates:
                    fastest[name] = min(fastest.get(name, one), one, key=lambda each: each.us)
        return fastest

    def is_told_apart(self, name: str) -> bool:
        """Tell whether measurements tell the best placement with a candidate from the shown one.

        Where one run has timed both, its common rounds decide, however far single rounds lie apart.
        """
        best, price = self._measured.get(name), self.by_candidate[name].us
        if price is None or self.us is None:
            return False
        if best is not None and best.us - self.us <= price:
            for run in (*filter(None, [self._found.base]), *reversed(self._found.runs)):
                one, other = run.timed(best.placement), run.timed(self._shown)
                if one is not None and other is not None:
                    return run.tells_apart(one, other)
        return abs(price) > noise_us(self._shown)

    @cached_property
    def by_candidate(self) -> dict[str, Price]:
        """Return what is known of the prices of candidates, by id."""
        prices: dict[str, Price] = {}
        answer, least_us = self._found.answer, None
        if self._found.placements:
            least_us = self._found.latency_us(self._found.placements[0])
        expected = [one.expected_us for one in self._found.measured.values()]
        for name in {*map(str, answer.regrets), *self._measured}:
            regret = answer.regrets.get(name)
            known = [self._measured[name].us] if name in self._measured else []
            if regret is not None and least_us is not None:
                cost_us = (answer.cost_us or 0.0) + regret
                # Where a placement of this cost was measured, what was measured counts.
                timed = any(us is not None and abs(us - cost_us) < SAME_US for us in expected)
                if not known or not timed:
                    known.append(least_us + regret)
            prices[name] = Price(min(known) - self.us if known and self.us is not None else None)
        if not self._found.broken_by(self._shown):
            prices.update(dict.fromkeys(self._shown.candidates, Price(0.0)))
        if least_us is not None and self.us is not None:
            for candidate, bound_us in answer.regret_bounds.items():
                price = Price(max(0.0, least_us + bound_us - self.us), at_least=True)
                prices.setdefault(str(candidate), price)
        return prices

    @cached_property
    def _pinned_us(self) -> float | None:
        """Return the latency of the best placement that is known to keep all pins."""
        search = self._found
        best = self._shown if not search.broken_by(self._shown) else search.best
        us = search.latency_us(best) if best is not None else None
        timed = search.best_measured()
        if timed is None:
            return us
        # A run may show a baseline that is tied with it.
        return timed.us if us is None else min(us, timed.us)

    @cached_property
    def pins_us(self) -> float | None:
        """Return what several pins cost together, in microseconds, by measured placements.

        Two pins that rule out the same placement cost nothing each while the other one is kept.
        None: it is not known, or there are not several pins.
        """
        pins = len(self._found.problem.pins)
        free = self._found.best_measured(range(pins))
        if pins < 2 or free is None or self._pinned_us is None:
            return None
        return self._pinned_us - free.us

    def verdicts(self, pins: tuple[Pin, ...]) -> tuple[PinVerdict, ...]:
        """Return what became of the pins, with what each costs.

        The price of a pin is the latency of the best placement that is known to keep all pins, less
        that of the best one that keeps all others.

        Args:
            pins: The document's pins.
        """
        search, us = self._found, self._pinned_us
        verdicts = pin_verdicts(pins, search.answer)
        if us is None:
            return tuple(verdicts)
        for number, verdict in enumerate(verdicts):
            if (free_us := search.least_us(number)) is not None:
                price_us = us - free_us
                reason = f"costs {time_text(price_us)}"
                if price_us < SAME_US:
                    reason = say.HONOURED_ANYWAY if price_us > -SAME_US else "costs nothing"
                verdicts[number] = msgspec.structs.replace(
                    verdict, state="honoured", price_us=price_us, reason=reason
                )
        return tuple(verdicts)


def search_of(
    document: Document,
    settings: RunSettings,
    previous: DocumentSearch | None = None,
    shown: Placement | None = None,
) -> DocumentSearch:
    """Search on the costs at hand, under the document's pins.

    Args:
        document: The document.
        settings: The settings of the search.
        previous: What the last call returned: it is the answer where nothing has changed, and
            after a change of pins alone most of it is used again.
        shown: The placement that others are compared with: latencies are as in its run.
    """
    own_placements = ((run, own) for run in document.runs for own in (run.placement, *run.rivals))
    base = next((run for run, own in own_placements if shown and own is shown), None)
    allowed = settings.toolchains
    candidates = [c for c in document.candidates if not allowed or c.instance.toolchain in allowed]
    runs = tuple(document.runs)
    inputs = SearchInputs(
        graph=document.graph,
        candidates=tuple(candidates),
        costs=table_of(candidates),
        constants=dict(document.constants),
        pins=tuple(document.pins),
        settings=settings,
    )
    if previous is not None and (previous.inputs, previous.runs) == (inputs, runs):
        if base is previous.base:
            return previous
        # Latencies are as they were in another run; nothing else has changed.
        measured = measured_placements(document, settings, previous.problem, base)
        return replace(previous, base=base, measured=measured)
    problem = inputs.problem()
    search = reuse(problem, None if previous is None else previous.search)
    result = inputs.search(problem, search)
    return DocumentSearch(
        inputs,
        problem,
        search,
        result.answer,
        [inputs.placement(cover) for cover in result.covers],
        runs=runs,
        base=base,
        measured=measured_placements(document, settings, problem, base),
    )


def search_document(
    document: Document,
    settings: RunSettings,
    previous: DocumentSearch | None = None,
    shown: Placement | None = None,
) -> tuple[SearchAnswer, DocumentSearch]:
    """Find the best placement on the costs at hand and on what was measured, under the pins.

    Args:
        document: The document.
        settings: The settings of the search.
        previous: The search that the last call returned.
        shown: The placement that prices are against; None: the best one.

    Returns:
        The answer, and the search for the next call.
    """
    search = search_of(document, settings, previous, shown)
    problem, answer, best = search.problem, search.answer, search.best
    if best is not None:
        prices = PlacementPrices(search, shown or best)
        return SearchAnswer(
            placement=best,
            verdicts=prices.verdicts(search.inputs.pins),
            pins_us=prices.pins_us,
            limits=answer.limit_verdicts,
            prices=prices.by_candidate,
        ), search
    verdicts = tuple(pin_verdicts(document.pins, answer))
    details: dict[str, object] = {"reason": say.UNDECIDED, "pins": [], "nodes": []}
    if answer.infeasible is not None:
        details = infeasible_details(
            document.graph, document.pins, answer, document.without_candidates
        )
    if answer.infeasible is not None and _is_only_unmeasured(problem):
        details["reason"] = say.NOT_MEASURED
        verdicts = tuple(
            msgspec.structs.replace(v, state="pending", reason=say.NOT_MEASURED)
            if v.state == "infeasible"
            else v
            for v in verdicts
        )
    return SearchAnswer(
        placement=None,
        infeasible=details,
        verdicts=verdicts,
        limits=answer.limit_verdicts,
    ), search


def _is_only_unmeasured(problem: Problem) -> bool:
    """Tell whether a problem without a cover has one of candidates that were left unmeasured."""
    if all(candidate.state != "unknown" for candidate in problem.candidates):
        return False
    free = tuple(
        msgspec.structs.replace(c, state="measured", cost_us=0.0) if c.state == "unknown" else c
        for c in problem.candidates
    )
    search = Search(msgspec.structs.replace(problem, candidates=free))
    return search.find(problem.pins, regrets=False).cost is not None


def measured_placements(
    document: Document, settings: RunSettings, problem: Problem, base: Run | None = None
) -> dict[Hashable, MeasuredPlacement]:
    """Return all placements that runs like the one that is asked for have timed, by identity.

    Latencies are as they were in one run, since the machine has another speed in another one. What
    that run timed has its time; those of other runs, the newest first, are multiplied by what the
    placements that both have timed take there, in the median. A run that timed none of them says
    nothing of how they compare, and is left out.

    Args:
        document: The document with its runs.
        settings: The settings that are asked for: times for another device, number of threads,
            precision or objective say nothing here.
        problem: The search problem of the document under its pins and these settings.
        base: The run in which all are compared; None: the newest.
    """
    placements: dict[Hashable, MeasuredPlacement] = {}
    earlier_us: dict[Hashable, float] = {}
    by_id = {c.id: c for c in document.candidates}
    operators, allowed = len(document.graph.nodes), settings.toolchains
    runs = sorted(reversed(document.runs), key=lambda run: run is not base)
    for run in runs:
        if run.of_profile or not is_like(run, settings):
            continue
        # What the run exports comes last: its time stands for a baseline's of the same partitions.
        of_baselines = (baseline_placement(each, by_id, operators) for each in run.baselines)
        timed = {
            one.identity: one
            for one in (*of_baselines, *run.rivals, run.placement)
            if one is not None and one.measured_us is not None
        }
        us = {name: one.measured_us for name, one in timed.items() if one.measured_us}
        slower = [earlier_us[name] / us[name] for name in us if name in earlier_us]
        if earlier_us and not slower:
            continue
        factor = statistics.median(slower) if slower else 1.0
        for name in [name for name in us if name not in earlier_us]:
            earlier_us[name] = us[name] * factor
            if not allowed or all(p.toolchain in allowed for p in timed[name].partitions):
                parts = problem_parts(timed[name])
                placements[name] = MeasuredPlacement(
                    placement=timed[name],
                    us=earlier_us[name],
                    broken_pins=broken_pins(problem.pins, parts),
                    keeps_limits=not broken_limits(problem, parts),
                    expected_us=expected_us(timed[name], problem),
                )
    return placements


def problem_parts(placement: Placement) -> tuple[ProblemCandidate, ...]:
    """Return the partitions of a placement as the search knows candidates.

    One whose cost is not known is unknown to the search, too.
    """
    return tuple(
        ProblemCandidate(
            id=part.candidate or part.id,
            nodes=part.nodes,
            toolchain=part.instance,
            cost_us=part.estimated_us,
            state="unknown" if part.estimated_us is None else "measured",
            device=part.device,
            takes=part.takes,
            gives=part.gives,
        )
        for part in placement.partitions
    )


def expected_us(placement: Placement, problem: Problem) -> float | None:
    """Return what the search says that a placement costs in microseconds, whatever the pins.

    It is None where the search does not know the cost of one of its partitions.
    """
    free = msgspec.structs.replace(problem, pins=(), limits=None)
    cost = check_cover(free, [part.candidate for part in placement.partitions])
    return cost if isinstance(cost, float) else None


def is_like(run: Run, settings: RunSettings) -> bool:
    """Tell whether a run's times are of what other settings ask for."""
    made_with = convert(run.settings, RunSettings)
    return (made_with.target, made_with.threads, made_with.precision, made_with.objective) == (
        settings.target,
        settings.threads,
        settings.precision,
        settings.objective,
    )
