"""Why a node of a document runs where it does, with the names that users know."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from collage_engine.planning.conversions import conversions_of
from collage_engine.planning.document_search import (
    DocumentSearch,
    PlacementPrices,
    problem_parts,
    search_of,
)
from collage_engine.planning.infeasible import infeasible_details
from collage_engine.records.answers import (
    Alternative,
    AlternativeStatus,
    ExplainAnswer,
    NoCandidate,
)
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.format import border_words
from collage_engine.records.graph import GraphRecord, OperatorNumber
from collage_engine.records.operators import NodeTitles
from collage_engine.records.pin import pin_title
from collage_engine.records.placement import Placement
from collage_engine.search.problem import ProblemCandidate
from collage_engine.store.document import Document
from collage_engine.support.text import NAMED, counted, listed
from collage_engine.wording.amounts import LEAST_US, time_text
from collage_engine.wording.facts import nan_losses_text
from collage_engine.wording.layers import layer_of, layer_text
from collage_engine.wording.sentences import instance_title, refusal_text
from collage_engine.wording.titles import contender_title

MOST_LISTED = 200
"""Things listed of one node, such as candidates (a count; chosen: more fill screens that nobody
reads)."""


def explain_document(
    document: Document,
    node: int,
    previous: DocumentSearch | None = None,
    shown: Placement | None = None,
) -> tuple[ExplainAnswer, DocumentSearch | None]:
    """Explain why a node runs where it does in the placement that is shown.

    Args:
        document: The document.
        node: Number of the operator.
        previous: The search that the last call returned.
        shown: The placement; None: that of the newest run, or the best one where no run has any.

    Returns:
        The answer, and the search for the next call. The answer has the candidates that hold the
        node, with their prices against the shown placement; the chosen one and its alternatives in
        words; the runner-up placement; and why other toolchains have no candidate.
    """
    exported = [run.placement for run in document.runs if run.placement is not None]
    shown = shown or (exported[-1] if exported else None)
    if shown is None and not any(c.cost.usable for c in document.candidates):
        refusals = _refusals(document, node)
        holding = [c for c in document.candidates if node in c.nodes]
        return ExplainAnswer(
            words=("Nothing is measured yet here: a run measures it.",),
            alternatives=tuple(map(_without_candidate, refusals)),
            candidates=tuple(holding[:MOST_LISTED]),
            not_offered=refusals,
        ), previous
    search = search_of(document, document.settings, previous, shown)
    return _Explanation(document, node, search, shown or search.best).answer(), search


class _Explanation:
    """The explanation of one node in one placement."""

    def __init__(
        self, document: Document, node: int, search: DocumentSearch, shown: Placement | None
    ) -> None:
        """Gather what sentences and alternatives rest on.

        Args:
            document: The document, with the pins of now.
            node: Number of the operator.
            search: The search under these pins.
            shown: The placement; None: there is none under the pins and limits.
        """
        self._document, self._node = document, node
        self._search, self._shown = search, shown
        self._identity = None if shown is None else shown.identity
        self._prices = None if shown is None else PlacementPrices(search, shown)
        self._known = {} if self._prices is None else self._prices.by_candidate
        self._names = node_names(document.graph)
        self._titles = NodeTitles(document.graph.nodes)
        # Partitions of an earlier run's placement need not be among the document's candidates.
        parts = () if shown is None else problem_parts(shown)
        shown_records = (
            CandidateRecord(
                id=part.candidate or part.id,
                instance=part.toolchain_instance(),
                nodes=tuple(map(OperatorNumber, part.nodes)),
                label="",
                device=part.device,
                takes=part.takes,
                gives=part.gives,
            )
            for part in (shown.partitions if shown is not None else ())
        )
        self._records = {c.id: c for c in (*shown_records, *document.candidates)}
        self._candidates = {str(c.id): c for c in search.problem.candidates}
        for part in parts:
            candidate = self._candidates.get(str(part.id))
            if candidate is None or candidate.state != "measured":
                self._candidates[str(part.id)] = part
        for timed in search.measured.values():
            # A partition that is the whole model takes what that took, not what a trial took early.
            names = [part.candidate for part in timed.placement.partitions]
            if len(names) == 1 and (whole := self._candidates.get(names[0])) is not None:
                self._candidates[names[0]] = msgspec.structs.replace(
                    whole, cost_us=timed.us, state="measured"
                )
        self._problem = msgspec.structs.replace(
            search.problem, candidates=tuple(self._candidates.values())
        )
        self._cover = [str(part.id) for part in parts]
        own = (self._candidates[name] for name in self._cover)
        self._chosen = next((c for c in own if node in c.nodes), None)

    def answer(self) -> ExplainAnswer:
        """Return the whole explanation."""
        holders = [c for c in self._candidates.values() if self._node in c.nodes]
        instead = self._prices_instead()
        lines = sorted((self._alternative(c, instead) for c in holders), key=_by_price)
        holding = [self._records[line.candidate or ""] for line in lines[:MOST_LISTED]]
        ids = {c.id for c in holding}
        refusals = _refusals(self._document, self._node)
        tied = [line for line in lines if line.status == "tied"]
        second = self._second_best
        return ExplainAnswer(
            words=tuple(self._sentences(tied)),
            alternatives=(*lines, *map(_without_candidate, refusals)),
            candidates=tuple(holding),
            prices={name: price for name, price in self._known.items() if name in ids},
            chosen=None if self._chosen is None else str(self._chosen.id),
            runner_up=None if second is None else self._search.with_time(second),
            not_offered=refusals,
            ties=tuple(line.candidate or "" for line in tied),
            prices_instead={name: us for name, us in instead.items() if name in ids},
        )

    # -- what things are called --------------------------------------------------------------

    def _toolchain(self, instance: str) -> str:
        """Return what a toolchain instance is called."""
        return instance_title(instance, self._document.toolchain_title)

    def _called(self, candidate: str) -> str:
        """Name a candidate by its nodes; by their number and both ends where there are many."""
        c = self._records[candidate]
        formats = border_words(c.takes, c.gives)
        nodes, count = self._titles.joined(c.nodes), len(self._titles.of(c.nodes))
        if count > NAMED:
            first, last = self._names[c.nodes[0]], self._names[c.nodes[-1]]
            nodes = f"{counted(count, 'node')}, {first} to {last}"
        return nodes + (f" ({formats})" if formats else "")

    # -- alternatives ------------------------------------------------------------------------

    def _alternative(
        self, candidate: ProblemCandidate, instead: Mapping[str, float]
    ) -> Alternative:
        """Return what is known of one candidate that holds the node.

        Args:
            candidate: The candidate.
            instead: What candidates that a pin rules out would cost in the place of that pin.
        """
        name = str(candidate.id)
        price = self._known.get(name)
        us = None if price is None else price.us
        status: AlternativeStatus
        if candidate.state == "invalid":
            status, us = "invalid", None
        elif candidate is self._chosen:
            status, us = "chosen", None
        elif price is not None and price.us is not None and not price.at_least:
            tied = self._prices is not None and not self._prices.is_told_apart(name)
            status = "tied" if tied else "slower" if price.us > 0 else "faster"
        elif candidate.state == "unknown":
            status = "unmeasured"
        elif name in instead:
            status, us = "instead of the pin", instead[name]
        elif price is None:
            status = "not known"
        else:
            status = "at least" if price.at_least else "ruled out"
        return Alternative(
            toolchain=candidate.toolchain,
            status=status,
            candidate=name,
            operators=self._called(name),
            here_us=candidate.cost_us,
            whole_us=us,
            reason=candidate.reason or "",
        )

    def _prices_instead(self) -> dict[str, float]:
        """Return what candidates would cost if the node were pinned to their toolchains instead.

        Such a pin takes the node out of those that demand another toolchain for it; all others
        stay.
        """
        document, node = self._document, self._node
        if self._shown is None or not any(
            pin.kind == "on" and node in pin.nodes for pin in document.pins
        ):
            return {}
        freed = copy.copy(document)
        whole = document.graph.whole_nodes([node])
        freed.pins = [
            msgspec.structs.replace(pin, nodes=rest)
            for pin in document.pins
            if (rest := tuple(n for n in pin.nodes if pin.kind != "on" or n not in whole))
        ]
        free = search_of(freed, document.settings, self._search, self._shown)
        prices = PlacementPrices(free, self._shown).by_candidate.items()
        return {name: p.us for name, p in prices if p.us is not None and not p.at_least}

    # -- sentences ---------------------------------------------------------------------------

    def _sentences(self, tied: Sequence[Alternative]) -> Iterator[str]:
        """Say everything about the node, the decisive first.

        Args:
            tied: The alternatives that cannot be told from the chosen candidate.
        """
        if self._shown is not None:
            yield from self._pinned(self._shown)
            yield from self._of_the_run(self._shown)
        yield from self._reasons(tied)
        if self._shown is not None:
            yield from self._time(self._shown)
        if self._chosen is not None:
            yield from self._calls(self._records[str(self._chosen.id)])
            yield from self._converted(set(self._chosen.nodes))
        losses = "" if self._shown is None else nan_losses_text(self._shown, self._toolchain)
        if losses:  # as the standard has it
            yield f"This placement does not hand on NaN: {losses}."

    def _pinned(self, shown: Placement) -> Iterator[str]:
        """Say which pins put the node where it is, and which the shown placement does not keep."""
        assert self._prices is not None
        broken = self._search.broken_by(shown)
        for number, verdict in enumerate(self._prices.verdicts(self._search.inputs.pins)):
            pin = self._document.pins[number]
            if self._node not in pin.nodes:
                continue
            name = pin.title
            if number in broken:
                yield f"This placement was made without the pin {name}, which it does not keep."
            else:
                yield f"The pin {name} puts it here: {verdict.reason}."
        together_us = self._prices.pins_us or 0.0
        if together_us >= LEAST_US and any(self._node in pin.nodes for pin in self._document.pins):
            pins = counted(len(self._document.pins), "pin")
            yield f"The {pins} together cost {time_text(together_us)}."

    def _of_the_run(self, shown: Placement) -> Iterator[str]:
        """Say which pins of its run are gone, and why that run exported a baseline, if it did."""
        run = next((run for run in self._document.runs[::-1] if run.placement is shown), None)
        if run is None or run.of_profile:
            return
        now = {pin.written for pin in self._document.pins}
        gone = [pin_title(verdict.pin) for verdict in run.pins if verdict.pin not in now]
        if gone:
            pins, them = ("the pin", "it") if len(gone) == 1 else ("the pins", "them")
            yield (
                f"{self._document.title(run)} was placed under {pins} {listed(gone)}; what follows "
                f"compares without {them}, as the session is now."
            )
        won = next((base for base in run.baselines if base.name == run.winner), None)
        if won is None:  # a cover of several partitions
            return
        name = contender_title(won.name, won.kind, self._toolchain)
        text, best = f"{self._document.title(run)} exports the baseline {name}", run.best_found()
        if best is not None and best.measured_us is not None and shown.measured_us is not None:
            took_text, best_text = time_text(shown.measured_us), time_text(best.measured_us)
            text += f": end to end it took {took_text}, the best mix that was timed {best_text}"
            if "collage" in run.tied:
                text += "; they are tied, and the baseline is simpler"
        yield f"{text}."

    def _reasons(self, tied: Sequence[Alternative]) -> Iterator[str]:
        """Say what runs the node, what could as well, and what the second-best placement has.

        Args:
            tied: The alternatives that cannot be told from the chosen candidate.
        """
        if self._chosen is None:
            document, answer = self._document, self._search.answer
            reason: object = "no placement was found"
            if answer.infeasible is not None:
                reason = infeasible_details(
                    document.graph, document.pins, answer, document.without_candidates
                )["reason"]
            yield f"{self._names[self._node]} is not placed: {reason}."
            return
        yield self._headline(self._chosen)
        if tied:
            names = [f"{self._toolchain(cover.toolchain)}'s {cover.operators}" for cover in tied]
            yield (
                f"Not decided on this machine now: {listed(names)}. A placement with one of these "
                "takes as long, as far as measurements tell."
            )
        if self._second_best is not None:
            yield self._second(self._second_best)

    def _headline(self, chosen: ProblemCandidate) -> str:
        """Return ``oneDNN runs conv+relu: 41 µs; by itself TVM would take 12 µs more``."""
        text = f"{self._toolchain(chosen.toolchain)} runs {self._called(str(chosen.id))}"
        if chosen.cost_us is not None:
            text = f"{text}: {time_text(chosen.cost_us)}"
        others = [
            (c.cost_us, c)
            for c in self._candidates.values()
            if c.state == "measured"
            and c.cost_us is not None
            and c.toolchain != chosen.toolchain
            and set(c.nodes) == set(chosen.nodes)
        ]
        if others and chosen.cost_us is not None:
            other_us, other = min(others, key=lambda each: each[0])
            more, name = other_us - chosen.cost_us, self._toolchain(other.toolchain)
            text += f"; by itself {name} would take {_against(more, 'more')}"
            if more <= -LEAST_US:
                text += f", {self._why_not(str(other.id))}"
        gap_us = self._search.answer.gap_us
        if gap_us and self._search.placements[0].identity == self._identity:
            above = f"at most {time_text(gap_us)} above the best one"
            text = f"{text} (the placement is proven to be {above})"
        return f"{text}."

    def _why_not(self, other: str) -> str:
        """Return why a candidate with a lower isolated cost was not chosen, with a conjunction."""
        price = self._known.get(other)
        if price is None:
            return "but there was no time to find the best placement with it"
        if price.us is None:
            return "but no placement contains it: a pin or its neighbours rule it out"
        if price.at_least:
            return f"but the best placement with it takes at least {time_text(price.us)} longer"
        which = "and another" if price.us <= -LEAST_US else "but the best"
        why = ", because of its transitions" if price.us >= LEAST_US else ""
        return f"{which} placement with it takes {_against(price.us)}{why}"

    @cached_property
    def _second_best(self) -> Placement | None:
        """Return the fastest known placement but the shown one, by its measured time if any."""
        if self._shown is None:
            return None
        return min(
            (p for p in self._search.placements if p.identity != self._identity),
            key=lambda p: math.inf if (us := self._search.latency_us(p)) is None else us,
            default=None,
        )

    def _second(self, second: Placement) -> str:
        """Say what the second-best placement does differently, and what that costs."""
        theirs = second.candidates
        gone = [self._candidates[name] for name in set(self._cover) - theirs]
        come = [self._candidates[name] for name in theirs - set(self._cover)]
        if not come:
            return "The second-best placement is the same."
        has = f"{self._parts(come)} instead of {self._parts(gone)}"
        own_us = None if self._prices is None else self._prices.us
        more = (self._search.latency_us(second) or 0.0) - (own_us or 0.0)
        less = more <= -LEAST_US
        name = "Another placement" if less else "The second-best placement"
        takes = "is expected to take" if less and second.measured_us is None else "takes"
        if not any(self._node in c.nodes for c in come):
            if len(come) > 1:
                has = counted(len(come), "other partition")
            has = f"the same at {self._names[self._node]}; elsewhere it has {has}"
        return f"{name} has {has} and {takes} {_against(more)}."

    def _parts(self, parts: Iterable[ProblemCandidate]) -> str:
        """List partitions by toolchain, nodes and the node where each begins."""
        names = []
        for part in sorted(parts, key=lambda c: min(c.nodes)):
            name, first = self._called(str(part.id)), self._names[min(part.nodes)]
            located = name if first in name else f"{name} at {first}"
            names.append(f"{self._toolchain(part.toolchain)}'s {located}")
        return listed(names)

    def _time(self, shown: Placement) -> Iterator[str]:
        """Say what the node takes in the placement, where its layers were timed."""
        layer = layer_of(shown, self._node)
        if layer is not None:
            names = dict.fromkeys(self._names[k] for k in layer.nodes)
            others = [name for name in names if name != self._names[self._node]]
            with_others = f" with {listed(others)}" if others else ""
            time = layer_text(shown, layer)
            yield f"In the run {self._names[self._node]} is computed{with_others} in {time}."

    def _calls(self, chosen: CandidateRecord) -> Iterator[str]:
        """Say which nodes of the chosen candidate are one library call each."""
        if chosen.composites:
            library = chosen.instance.toolchain
            calls = "; ".join(
                f"{self._titles.joined(of)} "
                f"({', '.join(dict.fromkeys(self._names[n] for n in of))})"
                for _, of in chosen.composites
            )
            yield f"It calls {self._document.toolchain_title(library)} for {calls}."

    def _converted(self, inside: set[int]) -> Iterator[str]:
        """Say what the placement converts where the node's partition begins or ends."""
        near = inside | {i for n in self._problem.nodes if n.id in inside for i in n.inputs}
        for change in conversions_of(self._problem, self._cover):
            if change.node in near:
                time = "" if change.us is None else f": {time_text(change.us)}"
                yield (
                    f"The value of {self._names[change.node]} is converted once from "
                    f"{change.source} to {change.target}{time}."
                )


def _refusals(document: Document, node: int) -> tuple[NoCandidate, ...]:
    """Return which toolchain instances have no candidate for a node, and why."""
    return tuple(
        NoCandidate(toolchain=instance, reason=refusal_text(reasons[node]))
        for instance, reasons in document.without_candidates.items()
        if node in reasons
    )


def _without_candidate(refusal: NoCandidate) -> Alternative:
    """Return a toolchain without a candidate as a line of the table."""
    return Alternative(toolchain=refusal.toolchain, status="no candidate", reason=refusal.reason)


def _by_price(line: Alternative) -> tuple[int, float, str]:
    """Return a key that sorts lines: the chosen candidate, then the others by price."""
    places = {"chosen": 0, "at least": 2, "unmeasured": 5, "invalid": 6}
    places |= dict.fromkeys(("instead of the pin", "ruled out", "not known"), 4)
    return places.get(line.status, 1), line.whole_us or 0.0, line.candidate or ""


def _against(us: float, more: str = "longer") -> str:
    """Return what a price says: ``as long``, ``12 µs longer`` or ``12 µs less``.

    Args:
        us: The price in microseconds.
        more: The word for what takes longer.
    """
    if abs(us) < LEAST_US:
        return "as long"
    return f"{time_text(abs(us))} {more if us > 0 else 'less'}"


def node_names(graph: GraphRecord) -> dict[int, str]:
    """Return the ONNX node that users know each operator by, by operator number.

    Args:
        graph: The model's graph. Where several nodes have one name, their types are added.
    """
    calls, titles = graph.nodes, NodeTitles(graph.nodes)
    called: dict[str, set[int]] = {}
    for name, node in zip((call.name for call in calls), graph.node_of_operator, strict=True):
        called.setdefault(name, set()).add(node)
    names = {}
    for number, call in enumerate(calls):
        if not call.name:
            names[number] = f"{titles[number]} {number}"
        else:
            several = len(called[call.name]) > 1
            names[number] = f"{call.name}.{titles[number]}" if several else call.name
    return names
