"""Why a node of a document runs where it does, with the names that users know."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from collage_engine.planning.conversions import conversions_of
from collage_engine.planning.device_reasons import device_words
from collage_engine.planning.document_search import DocumentSearch, search_of
from collage_engine.planning.refusals import refusal_text
from collage_engine.records.answers import ExplainAnswer, NoCandidate
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.counted import counted
from collage_engine.records.format import border_words
from collage_engine.records.graph import GraphRecord
from collage_engine.records.operator_titles import NODES_NAMED, NodeTitles
from collage_engine.records.placement import Run
from collage_engine.search.explain import Labels, explain_node
from collage_engine.search.problem import CandidateId, Problem
from collage_engine.session.document import Document
from collage_engine.wording import why as words
from collage_engine.wording.amounts import time_text

Amount = TypeVar("Amount", float, float | None)

MOST_CANDIDATES = 200
"""Candidates listed for one node (a count; chosen: more fill screens that nobody reads)."""


def explain_document(
    document: Document, node: int, previous: DocumentSearch | None = None
) -> tuple[ExplainAnswer, DocumentSearch | None]:
    """Explain why a node runs where it does.

    Args:
        document: The document.
        node: Number of the operator.
        previous: The search that the last call returned.

    Returns:
        The answer, and the search for the next call. The answer has the candidates that hold the
        node, with their regrets; the chosen one and its alternatives in words; the runner-up
        placement; and why other toolchains have no candidate.
    """
    refusals = {
        instance: refusal_text(reasons[node])
        for instance, reasons in document.without_candidates.items()
        if node in reasons
    }
    not_offered = tuple(NoCandidate(toolchain=i, reason=r) for i, r in refusals.items())
    if not any(c.cost.usable for c in document.candidates):
        holding = [c for c in document.candidates if node in c.nodes]
        return ExplainAnswer(
            words=(words.NOTHING_MEASURED,),
            candidates=tuple(holding[:MOST_CANDIDATES]),
            not_offered=not_offered,
        ), previous
    search = search_of(document, document.settings, previous)
    problem, answer, by_id = search.problem, search.answer, search.by_id
    shown = _exported_cover(document, problem)
    cover = shown or answer.cover
    second = search.ranked[1] if len(search.ranked) > 1 else None
    holding = [c for c in search.searched.candidates if node in c.nodes]
    named = {c.id for c in holding}.union(cover, answer.cover, second.cover if second else ())
    labels = labels_of(document, [by_id[str(name)] for name in named])
    explanation = explain_node(
        problem, answer, node, labels, refusals=refusals, runner_up=second, shown=shown
    )
    order = {str(line.candidate): place for place, line in enumerate(explanation.lines)}
    holding.sort(key=lambda c: order[c.id])
    chosen = by_id.get(str(explanation.chosen))
    return ExplainAnswer(
        words=(
            *_of_the_run(document, node, labels, explanation.chosen),
            *explanation.text[:1],
            *explanation.text[1:],
            *_calls(document, chosen, labels),
            *device_words(problem, cover, node),
            *_converted(problem, [str(i) for i in cover], node, labels),
        ),
        candidates=tuple(holding[:MOST_CANDIDATES]),
        regrets=_of_shown(answer.regrets, holding[:MOST_CANDIDATES]),
        regret_bounds=_of_shown(answer.regret_bounds, holding[:MOST_CANDIDATES]),
        chosen=None if explanation.chosen is None else str(explanation.chosen),
        runner_up=None if second is None else search.placements[1],
        not_offered=not_offered,
        ties=tuple(str(line.candidate) for line in explanation.lines if line.tie),
        prices_instead=_prices_instead(document, node, search, holding[:MOST_CANDIDATES]),
    ), search


def _prices_instead(
    document: Document, node: int, search: DocumentSearch, holding: Sequence[CandidateRecord]
) -> dict[str, float]:
    """Return what candidates would cost if the node were pinned to their toolchains instead.

    Such a pin takes the node out of those that demand another toolchain for it; all others stay.

    Args:
        document: The document.
        node: Number of the operator.
        search: The search under all pins.
        holding: The candidates that are asked about.
    """
    if not any(pin.kind == "on" and node in pin.nodes for pin in document.pins):
        return {}
    freed = copy.copy(document)
    freed.pins = []
    for pin in document.pins:
        rest = tuple(n for n in pin.nodes if pin.kind != "on" or n != node)
        if rest:
            freed.pins.append(msgspec.structs.replace(pin, nodes=rest))
    free = search_of(freed, document.settings, search).answer
    now_us, free_us = search.answer.cost_us, free.cost_us
    if now_us is None or free_us is None:
        return {}
    known = {str(name): us for name, us in free.regrets.items() if us is not None}
    return {c.id: known[c.id] + free_us - now_us for c in holding if c.id in known}


def _exported_cover(document: Document, problem: Problem) -> tuple[CandidateId, ...]:
    """Return the cover that the newest run exported; empty where it cannot be explained.

    It can where it was made under the pins of now, and consists of candidates of the problem.
    """
    run = document.runs[-1] if document.runs else None
    if run is None or run.placement is None:
        return ()
    if [verdict.pin for verdict in run.pins] != [pin.text for pin in document.pins]:
        return ()
    known = {str(c.id): c for c in problem.candidates}
    exported = [part.candidate for part in run.placement.partitions]
    if any(name not in known or known[name].state != "measured" for name in exported):
        return ()
    held = {node for name in exported for node in known[name].nodes}
    if held != {node.id for node in problem.nodes}:
        return ()
    return tuple(known[name].id for name in exported)


def _of_the_run(
    document: Document, node: int, labels: Labels, chosen: CandidateId | None
) -> list[str]:
    """Say what the newest run exported for this node, where a baseline won or pins changed."""
    run = document.runs[-1] if document.runs else None
    if run is None or run.placement is None:
        return []
    part = next((p for p in run.placement.partitions if node in p.nodes), None)
    if part is None or (run.winner == "collage" and part.candidate == str(chosen)):
        return []
    config = ",".join(f"{k}={v}" for k, v in part.config.items())
    instance = f"{part.toolchain}[{config}]" if config else part.toolchain
    found = run.best_found()
    ours = found.measured_us if found is not None else None
    took = run.placement.measured_us
    toolchain = labels.toolchain(instance)
    if run.winner == "collage":
        return [words.EXPORTED_ANOTHER.format(toolchain=toolchain, partition=part.id)]
    baseline = _baseline_name(run, labels)
    text = words.EXPORTED_BASELINE.format(baseline=baseline, toolchain=toolchain)
    if ours is not None and took is not None:
        sentence = words.BASELINE_FASTER if took <= ours else words.BASELINE_TIED
        text = sentence.format(text=text, took=time_text(took), ours=time_text(ours))
    if part.candidate == str(chosen):
        return [f"{text}."]
    return [f"{text}. {words.ABOUT_LEAST_EXPECTED}"]


def _baseline_name(run: Run, labels: Labels) -> str:
    """Return what the baseline that a run exported is called."""
    won = next((base for base in run.baselines if base.name == run.winner), None)
    if won is None or won.kind != "whole-model":
        return run.winner
    return f"{labels.toolchain(run.winner)} only"


def _calls(document: Document, chosen: CandidateRecord | None, labels: Labels) -> list[str]:
    """Say which operators of the chosen candidate are one library call each."""
    if chosen is None or not chosen.composites:
        return []
    library = chosen.instance.library or chosen.instance.toolchain
    calls = "; ".join(
        f"{name} ({', '.join(labels.node(n) for n in of)})" for name, of in chosen.composites
    )
    return [words.LIBRARY_CALLS.format(library=document.toolchain_title(library), calls=calls)]


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
    if count > NODES_NAMED:
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
        (words.CONVERTED if each.us is None else words.CONVERTED_IN).format(
            node=labels.node(each.node),
            source=each.source,
            target=each.target,
            cost=time_text(each.us),
        )
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
    toolchains = {}
    for instance in sorted(instances):
        name, _, config = instance.rstrip("]").partition("[")
        options = [option.partition("=") for option in filter(None, config.split(","))]
        settings = ", ".join(
            f"{key} {document.toolchain_title(value) if key == 'library' else value}".rstrip()
            for key, _, value in options
        )
        title = document.toolchain_title(name)
        toolchains[instance] = f"{title} ({settings})" if settings else title
    names, titles = node_names(document.graph), NodeTitles(document.graph.calls)
    return Labels(
        nodes=names,
        candidates={c.id: _label(c, names, titles) for c in candidates},
        toolchains=toolchains,
    )
