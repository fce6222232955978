"""Searches a document, and keeps what was found for the next question about it.

A click on a node asks why it runs there, and the next click asks the same of another node. What
both answers rest on (the problem, its least-cost covers, the regrets of all candidates) depends on
candidates, costs, pins and settings only, so it is found out once and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec

from collage_engine.planning.deployment_limits import limit_verdicts
from collage_engine.planning.infeasible import infeasible_details
from collage_engine.planning.search_problem import (
    best_covers,
    make_problem,
    pin_verdicts,
    problem_pin,
    ranked_placement,
)
from collage_engine.records.answers import SearchAnswer
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost_table import CostTable, table_of
from collage_engine.records.graph import GraphRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Placement
from collage_engine.records.settings import RunSettings
from collage_engine.search.api import Search, reuse, solve
from collage_engine.search.problem import Answer, Problem
from collage_engine.search.ranked_covers import RankedCover
from collage_engine.session.document import Document
from collage_engine.wording import constraints as say


@dataclass(frozen=True)
class Searched:
    """What a search problem is made of in a document, apart from the pins."""

    graph: GraphRecord
    candidates: list[CandidateRecord]
    constants: dict[str, float]
    settings: RunSettings

    def is_same(self, other: Searched) -> bool:
        """Tell whether both make the same problem: candidates are records that never change."""
        return (
            self.graph is other.graph
            and self.settings == other.settings
            and self.candidates == other.candidates
            and self.constants == other.constants
        )


@dataclass
class DocumentSearch:
    """The search problem of a document, its answer, and what both were made of."""

    searched: Searched
    pins: tuple[Pin, ...]
    costs: CostTable
    problem: Problem
    search: Search
    answer: Answer

    @cached_property
    def by_id(self) -> dict[str, CandidateRecord]:
        """Return the candidates by id."""
        return {c.id: c for c in self.searched.candidates}

    @cached_property
    def ranked(self) -> list[RankedCover]:
        """Return the least-cost cover and its runners-up, the best first."""
        return best_covers(self.problem, self.search)

    @cached_property
    def placements(self) -> list[Placement]:
        """Return the ranked covers as placements that were not measured yet."""
        return [
            ranked_placement(
                self.searched.graph,
                self.by_id,
                self.costs,
                self.problem,
                each,
                self.searched.settings,
            )
            for each in self.ranked
        ]


def search_of(
    document: Document, settings: RunSettings, previous: DocumentSearch | None = None
) -> DocumentSearch:
    """Search on the costs at hand, under the document's pins.

    Args:
        document: The document.
        settings: The settings of the search.
        previous: What the last call returned: it is the answer where nothing has changed, and
            after a change of pins alone most of it is used again.
    """
    candidates = document.candidates
    if settings.toolchains:
        candidates = [c for c in candidates if c.instance.toolchain in settings.toolchains]
    searched = Searched(
        graph=document.graph,
        candidates=list(candidates),
        constants=dict(document.constants),
        settings=_of_the_problem(settings),
    )
    pins = tuple(document.pins)
    if previous is not None and previous.searched.is_same(searched):
        if previous.pins == pins:
            return previous
        problem = msgspec.structs.replace(
            previous.problem, pins=tuple(problem_pin(pin) for pin in pins)
        )
        costs, search = previous.costs, previous.search
    else:
        costs = table_of(candidates)
        problem = make_problem(
            document.graph, candidates, costs, pins, document.constants, settings
        )
        search = reuse(problem, None if previous is None else previous.search)
    answer = solve(problem, previous=search)
    return DocumentSearch(searched, pins, costs, problem, search, answer)


def _of_the_problem(settings: RunSettings) -> RunSettings:
    """Return the settings that ``make_problem`` reads, without the others."""
    return RunSettings(
        toolchains=settings.toolchains,
        allow_runtimes=settings.allow_runtimes,
        max_runtimes=settings.max_runtimes,
        max_artifact_bytes=settings.max_artifact_bytes,
        licences=settings.licences,
    )


def search_document(
    document: Document, settings: RunSettings, previous: DocumentSearch | None = None
) -> tuple[SearchAnswer, DocumentSearch]:
    """Search on the costs at hand, under the document's pins.

    Args:
        document: The document.
        settings: The settings of the search.
        previous: The search that the last call returned.

    Returns:
        The answer, and the search for the next call.
    """
    found = search_of(document, settings, previous)
    problem, answer = found.problem, found.answer
    verdicts = tuple(pin_verdicts(document.pins, answer))
    if answer.infeasible is None and answer.cost_us is None:
        return SearchAnswer(
            placement=None,
            infeasible={"reason": say.UNDECIDED, "pins": [], "nodes": []},
            verdicts=verdicts,
            optimal=False,
            seconds=answer.seconds,
        ), found
    if answer.infeasible is not None:
        details = infeasible_details(
            document.graph, document.pins, answer, document.without_candidates
        )
        if _is_only_unmeasured(problem):
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
            limits=tuple(limit_verdicts(answer)),
            seconds=answer.seconds,
        ), found
    return SearchAnswer(
        placement=found.placements[0],
        verdicts=verdicts,
        limits=tuple(limit_verdicts(answer)),
        regrets={str(i): us for i, us in answer.regrets.items()},
        regret_bounds={str(i): us for i, us in answer.regret_bounds.items()},
        runners_up=tuple(found.placements[1:]),
        lower_bound_us=answer.lower_bound_us,
        optimal=answer.optimal,
        seconds=answer.seconds,
    ), found


def _is_only_unmeasured(problem: Problem) -> bool:
    """Tell whether a problem without a cover has one of candidates that were left unmeasured."""
    if all(candidate.state != "unknown" for candidate in problem.candidates):
        return False
    found = Search(problem, optimistic=True).find(problem.pins, regrets=False)
    return found.cost is not None
