"""Why a node of a document runs where it does, with the names that users know."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from collage_engine.planning.conversions import conversions_of
from collage_engine.planning.document_search import (
    DocumentSearch,
    PlacementPrices,
    search_of,
)
from collage_engine.planning.measured_placements import identity, problem_parts
from collage_engine.planning.refusals import refusal_text
from collage_engine.planning.search_problem import device_words
from collage_engine.records.answers import Alternative, ExplainAnswer, NoCandidate
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.counted import NAMED, counted
from collage_engine.records.format import border_words
from collage_engine.records.graph import GraphRecord
from collage_engine.records.numbering import OperatorNumber
from collage_engine.records.operator_titles import NodeTitles
from collage_engine.records.placement import Placement, Run
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.search.explain import Labels, explain_node
from collage_engine.search.problem import Answer, CandidateId, Problem
from collage_engine.search.ranked_covers import RankedCover
from collage_engine.session.document import Document
from collage_engine.wording.amounts import time_text
from collage_engine.wording.runs import instance_title

Amount = TypeVar("Amount", float, float | None)

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
    refusals = {
        instance: refusal_text(reasons[node])
        for instance, reasons in document.without_candidates.items()
        if node in reasons
    }
    not_offered = tuple(NoCandidate(toolchain=i, reason=r) for i, r in refusals.items())
    holding = [c for c in document.candidates if node in c.nodes]
    exported = [run.placement for run in document.runs if run.placement is not None]
    shown = shown or (exported[-1] if exported else None)
    if shown is None and not any(c.cost.usable for c in document.candidates):
        return ExplainAnswer(
            words=("Nothing is measured yet here: a run measures it.",),
            alternatives=tuple(
                Alternative(toolchain=name, status="no candidate", reason=reason)
                for name, reason in refusals.items()
            ),
            candidates=tuple(holding[:MOST_LISTED]),
            not_offered=not_offered,
        ), previous
    search = search_of(document, document.settings, previous)
    shown = shown or search.best
    prices = PlacementPrices(search, shown) if shown is not None else None
    problem, answer, by_id = search.problem, search.answer, dict(search.by_id)
    if prices is not None and shown is not None:
        problem = _with_partitions(problem, shown)
        by_id.update({c.id: c for c in _records(shown) if c.id not in by_id})
        answer = _of_placement(search, shown, prices)
    second = _second_best(search, shown)
    holding = [c for c in by_id.values() if node in c.nodes]
    cover = [str(name) for name in answer.cover]
    named = {c.id for c in holding}.union(cover, second.candidates if second else ())
    labels = labels_of(document, [by_id[name] for name in named])
    noise_us = shown.noise_us if shown is not None and shown.measured_us is not None else None
    runner_up = None
    if second is not None and prices is not None:
        runner_up = RankedCover(
            cover=tuple(part.candidate for part in second.partitions),
            cost_us=search.latency_us(second) or 0.0,
            regret_us=(search.latency_us(second) or 0.0) - (prices.us or 0.0),
        )
    explanation = explain_node(
        problem, answer, node, labels, refusals=refusals, runner_up=runner_up, noise_us=noise_us
    )
    alternatives = explanation.alternatives
    order = {line.candidate: place for place, line in enumerate(alternatives)}
    holding.sort(key=lambda c: order[c.id])
    holding = holding[:MOST_LISTED]
    chosen = by_id.get(str(explanation.chosen))
    instead = _prices_instead(document, node, search, holding, shown)
    return ExplainAnswer(
        words=(
            *_pinned(document, node, search, shown, prices),
            *_of_the_run(document, node, labels, shown),
            *explanation.text,
            *_calls(document, chosen, labels),
            *(device_words(problem, cover, node) if chosen is not None else ()),
            *_converted(problem, cover, node, labels),
        ),
        alternatives=_with_prices(alternatives, instead),
        candidates=tuple(holding),
        regrets=_of_shown(answer.regrets, holding),
        regret_bounds=_of_shown(answer.regret_bounds, holding),
        chosen=None if explanation.chosen is None else str(explanation.chosen),
        runner_up=None if second is None else search.with_time(second),
        not_offered=not_offered,
        ties=tuple(str(line.candidate) for line in alternatives if line.status == "tied"),
        prices_instead=instead,
    ), search


def _second_best(search: DocumentSearch, shown: Placement | None) -> Placement | None:
    """Return the fastest known placement but the shown one, by its measured time if it has one."""
    return min(
        (p for p in search.placements if not _is_same(p, shown)),
        key=lambda p: math.inf if (us := search.latency_us(p)) is None else us,
        default=None,
    )


def _is_same(one: Placement, other: Placement | None) -> bool:
    return other is not None and identity(one) == identity(other)


def _of_placement(search: DocumentSearch, shown: Placement, prices: PlacementPrices) -> Answer:
    """Return the search's answer with the shown placement as its cover.

    It is without verdicts, which :func:`_pinned` tells, and says how far from the best cover it may
    be only where it is the search's own.
    """
    own = search.answer.cost_us is not None and _is_same(search.placements[0], shown)
    return msgspec.structs.replace(
        search.answer,
        cost_us=prices.us,
        cover=tuple(part.id for part in problem_parts(shown)),
        regrets=dict(prices.regrets),
        regret_bounds=dict(prices.regret_bounds),
        verdicts=(),
        optimal=search.answer.optimal or not own,
        infeasible=None,
    )


def _with_partitions(problem: Problem, shown: Placement) -> Problem:
    """Return the problem with the partitions of a placement among its candidates."""
    parts = {part.id: part for part in problem_parts(shown)}
    known = [
        parts.pop(c.id) if c.id in parts and c.state != "measured" else c
        for c in problem.candidates
    ]
    ids = {c.id for c in known}
    new = [part for name, part in parts.items() if name not in ids]
    return msgspec.structs.replace(problem, candidates=(*known, *new))


def _records(shown: Placement) -> list[CandidateRecord]:
    """Return the partitions of a placement as rows, for those that no document lists."""
    return [
        CandidateRecord(
            id=part.candidate or part.id,
            instance=ToolchainInstance(
                toolchain=part.toolchain,
                config=tuple(sorted(part.config.items())),
                precision=part.precision,
                device=part.device,
            ),
            nodes=tuple(map(OperatorNumber, part.nodes)),
            label="",
            device=part.device,
            takes=part.takes,
            gives=part.gives,
        )
        for part in shown.partitions
    ]


def _pinned(
    document: Document,
    node: int,
    search: DocumentSearch,
    shown: Placement | None,
    prices: PlacementPrices | None,
) -> list[str]:
    """Say which pins put a node where it is, and which of them the shown placement does not keep.

    Args:
        document: The document, with the pins of now.
        node: Number of the operator.
        search: The search under these pins.
        shown: The placement that is explained.
        prices: What the pins cost against it.
    """
    if shown is None or prices is None:
        return []
    broken, said = search.broken_by(shown), []
    for place, verdict in enumerate(prices.verdicts(search.pins)):
        pin = document.pins[place]
        if node not in pin.nodes:
            continue
        name = pin.title
        if place in broken:
            text = f"This placement was made without the pin {name}, which it does not keep."
        else:
            text = f"The pin {name} puts it here: {verdict.reason}."
        said.append(text)
    return said


def _prices_instead(
    document: Document,
    node: int,
    search: DocumentSearch,
    holding: Sequence[CandidateRecord],
    shown: Placement | None,
) -> dict[str, float]:
    """Return what candidates would cost if the node were pinned to their toolchains instead.

    Such a pin takes the node out of those that demand another toolchain for it; all others stay.

    Args:
        document: The document.
        node: Number of the operator.
        search: The search under all pins.
        holding: The candidates that are asked about.
        shown: The placement that the costs are against.
    """
    if shown is None or not any(pin.kind == "on" and node in pin.nodes for pin in document.pins):
        return {}
    freed = copy.copy(document)
    freed.pins = []
    whole = document.graph.whole_nodes([node])
    for pin in document.pins:
        rest = tuple(n for n in pin.nodes if pin.kind != "on" or n not in whole)
        if rest:
            freed.pins.append(msgspec.structs.replace(pin, nodes=rest))
    free = search_of(freed, document.settings, search)
    regrets = PlacementPrices(free, shown).regrets
    return {c.id: us for c in holding if (us := regrets.get(c.id)) is not None}


def _with_prices(
    alternatives: Iterable[Alternative], instead: Mapping[str, float]
) -> tuple[Alternative, ...]:
    """Say what each choice that a pin rules out would cost in the place of that pin."""
    return tuple(
        msgspec.structs.replace(line, status="instead of the pin", whole_us=us, reason="")
        if line.status == "ruled out" and (us := instead.get(line.candidate or "")) is not None
        else line
        for line in alternatives
    )


def _of_the_run(
    document: Document, node: int, labels: Labels, shown: Placement | None
) -> list[str]:
    """Say why the run that made the shown placement exported a baseline, where it did."""
    run = next((run for run in reversed(document.runs) if run.placement is shown), None)
    if run is None or shown is None or run.winner == "collage" or run.of_profile:
        return []
    found = run.best_found()
    ours = found.measured_us if found is not None else None
    took = shown.measured_us
    text = f"{document.title(run)} exports the baseline {_baseline_name(run, labels)}"
    if ours is None or took is None:
        return [f"{text}."]
    if "collage" in run.tied:
        both = f"{time_text(took)} and {time_text(ours)}"
        text += (
            f": end to end it is tied with the search's best placement ({both}), and it is simpler"
        )
    elif took <= ours:
        best = time_text(ours)
        text += f": end to end it took {time_text(took)}, the search's best placement {best}"
    return [f"{text}."]


def _baseline_name(run: Run, labels: Labels) -> str:
    """Return what the baseline that a run exported is called."""
    won = next((base for base in run.baselines if base.name == run.winner), None)
    if won is None or won.kind != "whole-model":
        return run.winner
    return f"{labels.toolchain(run.winner)} only"


def _calls(document: Document, chosen: CandidateRecord | None, labels: Labels) -> list[str]:
    """Say which nodes of the chosen candidate are one library call each."""
    if chosen is None or not chosen.composites:
        return []
    library = chosen.instance.library or chosen.instance.toolchain
    titles = NodeTitles(document.graph.calls)
    calls = "; ".join(
        f"{titles.joined(of)} ({', '.join(dict.fromkeys(map(labels.node, of)))})"
        for _, of in chosen.composites
    )
    return [f"It calls {document.toolchain_title(library)} for {calls}."]


def _of_shown(
    amounts: Mapping[CandidateId, Amount], shown: list[CandidateRecord]
) -> dict[str, Amount]:
    """Return the amounts of the candidates that are shown."""
    ids = {c.id for c in shown}
    return {str(name): amount for name, amount in amounts.items() if str(name) in ids}


def _label(c: CandidateRecord, names: dict[int, str], titles: NodeTitles) -> str:
    """Name a candidate by its nodes; by their number and both ends where there are many."""
    formats = border_words(c.takes, c.gives)
    nodes, count = titles.joined(c.nodes), len(titles.of(c.nodes))
    if count > NAMED:
        nodes = f"{counted(count, 'node')}, {names[c.nodes[0]]} to {names[c.nodes[-1]]}"
    return nodes + (f" ({formats})" if formats else "")


def _converted(problem: Problem, cover: Sequence[str], node: int, labels: Labels) -> list[str]:
    """Say what the cover converts where the node's partition begins or ends."""
    holder = next((c for c in problem.candidates if str(c.id) in cover and node in c.nodes), None)
    if holder is None:
        return []
    inside = set(holder.nodes)
    near = inside | {i for n in problem.nodes if n.id in inside for i in n.inputs}
    return [
        f"The value of {labels.node(each.node)} is converted once from {each.source} to "
        f"{each.target}{'' if each.us is None else f': {time_text(each.us)}'}."
        for each in conversions_of(problem, cover)
        if each.node in near
    ]


def node_names(graph: GraphRecord) -> dict[int, str]:
    """Return the ONNX node that users know each operator by, by operator number.

    Args:
        graph: The model's graph. Where several nodes have one name, their types are added.
    """
    calls, titles = graph.calls, NodeTitles(graph.calls)
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


def labels_of(document: Document, candidates: Iterable[CandidateRecord]) -> Labels:
    """Return what nodes, toolchains and some candidates are called in sentences.

    Args:
        document: The document.
        candidates: The candidates that sentences speak of.
    """
    instances = {c.instance.id for c in document.candidates} | document.without_candidates.keys()
    toolchains = {each: instance_title(each, document.toolchain_title) for each in instances}
    names, titles = node_names(document.graph), NodeTitles(document.graph.calls)
    return Labels(
        nodes=names,
        candidates={c.id: _label(c, names, titles) for c in candidates},
        toolchains=toolchains,
    )
