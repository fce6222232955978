"""Requests that are answered from a document's own records, at once.

No model file is read and nothing is compiled or measured. Each raises UsageError with the sentence
to show.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collage_engine.planning.document_search import search_document
from collage_engine.planning.explanation import explain_document
from collage_engine.planning.search_inputs import make_placement
from collage_engine.records import protocol as p
from collage_engine.records.answers import ExplainAnswer, SearchAnswer
from collage_engine.records.candidate import table_of
from collage_engine.records.placement import Placement, Run
from collage_engine.service.open_document import OpenDocument
from collage_engine.store.pins import parse_pin
from collage_engine.support.errors import UsageError
from collage_engine.toolchains.registry import all_names


def graph_get(opened: OpenDocument, request: p.GraphGet) -> p.GraphAnswer:
    """Return the document's graph and pins."""
    return p.GraphAnswer(graph=opened.document.graph, pins=tuple(opened.document.pins))


# -- pins and search -------------------------------------------------------------------


def pins_set(opened: OpenDocument, request: p.PinsSet) -> None:
    """Replace the document's pins; UsageError where one does not fit the graph."""
    graph = opened.document.graph
    operators = len(graph.nodes)
    for pin in request.pins:
        wrong = pin.fault(operators)
        if wrong:
            raise UsageError(f"pin {pin.written!r}: {wrong}")
    whole = [
        msgspec.structs.replace(pin, nodes=graph.whole_nodes(pin.nodes)) for pin in request.pins
    ]
    with opened.lock:
        opened.document.pins = whole


def set_pins(opened: OpenDocument, texts: Sequence[str]) -> None:
    """Replace the document's pins by these, written as for ``collage place --pin``.

    Args:
        opened: The document.
        texts: The pins.

    Raises:
        UsageError: A text is no pin, or matches no node, or names no toolchain.
    """
    names, graph, model = all_names(), opened.document.graph, opened.document.model
    pins = tuple(parse_pin(text, graph, model, names) for text in texts)
    pins_set(opened, p.PinsSet(document=opened.handle, pins=pins))


def run_search(opened: OpenDocument, request: p.RunSearch) -> SearchAnswer:
    """Return the best placement at the stored costs under the pins as they are now."""
    with opened.searching:
        now = opened.snapshot()
        if not now.candidates:
            raise UsageError("nothing has been measured yet: start a run first")
        answer, opened.search = search_document(
            now, request.settings, opened.search, _shown(opened, request.shown)
        )
        opened.prices = answer.prices
    return answer


def candidates_query(opened: OpenDocument, request: p.CandidatesQuery) -> p.CandidatesAnswer:
    """Return candidates that contain any of the nodes, or all candidates."""
    wanted = set(request.nodes)
    with opened.lock:
        shown = [
            c for c in opened.document.candidates if not wanted or not wanted.isdisjoint(c.nodes)
        ]
    return p.CandidatesAnswer(
        candidates=tuple(shown),
        prices={c.id: opened.prices[c.id] for c in shown if c.id in opened.prices},
    )


def explain(opened: OpenDocument, request: p.Explain) -> ExplainAnswer:
    """Return why an operator runs where it does; UsageError where there is no such operator."""
    opened.check_operator(request.node)
    with opened.searching:
        answer, opened.search = explain_document(
            opened.snapshot(), request.node, opened.search, _shown(opened, request.shown)
        )
    return answer


def _shown(opened: OpenDocument, named: p.ShownCover) -> Placement | None:
    """Return the placement that a client shows; None where it names none.

    Raises:
        UsageError: There is no such run or candidate, or the run has no placement.
    """
    if named.run:
        run = opened.run(named.run)
        if run.placement is None:
            raise UsageError(f"the run {named.run} has no placement")
        return run.placement
    if not named.candidates:
        return None
    wanted = frozenset(named.candidates)
    for run in reversed(opened.document.runs):
        for placement in (run.placement, *run.rivals):
            if placement is not None and placement.candidates == wanted:
                return placement
    chosen = [opened.candidate(name) for name in named.candidates]
    return make_placement(opened.document.graph, chosen, table_of(chosen))


# -- runs ------------------------------------------------------------------------------


def runs_list(opened: OpenDocument, request: p.RunsList) -> tuple[Run, ...]:
    """Return the document's runs, the oldest first."""
    return tuple(opened.document.runs)


def shapes_list(
    opened: OpenDocument, request: p.ShapesList | None = None
) -> tuple[p.ShapeEntry, ...]:
    """Return the shapes that the document's model is open for, and the table of them."""
    return tuple(
        p.ShapeEntry(
            choice=member.choice,
            document=member.handle,
            model=member.document.model,
            row=member.row,
        )
        for member in opened.together
    )


def runs_edit(opened: OpenDocument, request: p.RunEdit) -> tuple[Run, ...]:
    """Rename a run, put a note on it, or delete it; return the runs as they are then."""
    run = opened.run(request.run)
    with opened.lock:
        if request.delete:
            opened.document.runs.remove(run)
        if request.name is not None:
            run.name = request.name
        if request.note is not None:
            run.note = request.note
        return tuple(opened.document.runs)


def export_report(opened: OpenDocument, request: p.ExportReport) -> p.Exported:
    """Return the report of one run, or of the last one where none is named."""
    from collage_engine.drawing.report import render

    run = opened.run(request.run) if request.run else None
    content = render(opened.snapshot(), request.format, run)
    return p.Exported(content=content)
