"""Checks whether the records of a session fit each other; asked when a file is opened.

A file may come from anybody. What is computed from its records later (the search, reports, the
desktop's picture) relies on what is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from collage_engine.records.checks import (
    LARGEST_INTEGER,
    LONGEST_US,
    candidate_fault,
    cost_fault,
    nodes_fault,
    pin_fault,
    times_fault,
)
from collage_engine.records.errors import SessionError
from collage_engine.records.graph import GraphRecord, Node
from collage_engine.records.placement import Placement, Run
from collage_engine.records.reasons import shown
from collage_engine.records.shapes import MOST_SHAPES
from collage_engine.session.document import Document


def check_document(document: Document) -> None:
    """Refuse a document whose records do not fit each other.

    Raises:
        SessionError: They do not; the sentence names the first record that is wrong.
    """
    for fault in _faults(document):
        raise SessionError(fault)


def _faults(document: Document) -> Iterator[str]:
    yield from _graph_faults(document.graph)
    calls = sum(node.form == "call" for node in document.graph.nodes)
    if document.model.nodes != calls:
        yield f"the model has {document.model.nodes} operators and the graph {calls}"
    named: set[str] = set()
    for candidate in document.candidates:
        wrong = candidate_fault(candidate, calls) or cost_fault(candidate.cost)
        if candidate.id in named:
            wrong = "there are two of this name"
        if wrong:
            yield f"the candidate '{shown(candidate.id)}': {wrong}"
        named.add(candidate.id)
    for number, pin in enumerate(document.pins, start=1):
        wrong = pin_fault(pin, calls)
        if wrong:
            yield f"pin {number}: {wrong}"
    for name, us in document.constants.items():
        if not 0 <= us < LONGEST_US:
            yield f"the constant '{shown(name)}': {us!r} is not possible"
    for instance, reasons in document.without_candidates.items():
        if any(not 0 <= number < calls for number in reasons):
            yield f"what '{shown(instance)}' does not offer: it names a node that is none"
    yield from _run_faults(document.runs, calls)
    yield from _shapes_faults(document)


def _shapes_faults(document: Document) -> Iterator[str]:
    """Yields what is wrong with the shapes that are placed together.

    Each must be there once, and one of them must be that of the document itself.
    """
    if not document.shapes:
        return
    texts = [shape.choice.text for shape in document.shapes]
    if len(texts) > MOST_SHAPES or len(set(texts)) < len(texts):
        yield "it has two of the same shape, or more than one artifact can have"
    others = [shape.document for shape in document.shapes if shape.document is not None]
    if len(others) != len(texts) - 1:
        yield "not exactly one of its shapes is that of the session itself"
    for shape in document.shapes:
        other = shape.document
        if other is None:
            continue
        if other.model.sha256 != document.model.sha256:
            yield f"the shape '{shown(shape.choice.text)}' is of another model"
        for fault in _faults(other):
            yield f"the shape '{shown(shape.choice.text)}': {fault}"


def _graph_faults(graph: GraphRecord) -> Iterator[str]:
    nodes = graph.nodes
    if not any(node.form == "call" for node in nodes):
        yield "the graph has no operators"
    for place, node in enumerate(nodes):
        wrong = _node_fault(place, node, nodes)
        if wrong:
            yield f"node {place} of the graph: {wrong}"
    interface = (("inputs", graph.inputs), ("outputs", graph.outputs))
    for what, indices in interface:
        if any(not 0 <= index < len(nodes) for index in indices):
            yield f"the {what} of the graph name a node that is none"
    if any(nodes[index].form != "parameter" for index in graph.inputs):
        yield "an input of the graph is no parameter"
    for what, indices, names in (
        ("inputs", graph.inputs, graph.input_names),
        ("outputs", graph.outputs, graph.output_names),
    ):
        if names and len(names) != len(indices):
            yield f"the graph has {len(indices)} {what} and {len(names)} names for them"


def _node_fault(place: int, node: Node, nodes: tuple[Node, ...]) -> str | None:
    if node.index != place:
        return f"it says that it is node {node.index}"
    if any(not 0 <= source < place for source in node.inputs):
        return "it reads a node that does not come before it"
    after = node.post_dominator
    if after is not None and not place < after < len(nodes):
        return "its post-dominator does not come after it"
    if node.form in ("parameter", "constant", "call") and not node.types:
        return "its value has no type"
    if any(extent < 0 for kind in node.types for extent in kind.shape):
        return "a dimension of its value is negative"
    if any(_is_too_large(kind.shape) for kind in node.types):
        return "its value has more elements than 2^63"
    if node.form == "projection":
        if len(node.inputs) != 1:
            return "it is a field of no value"
        if not 0 <= node.field < max(1, len(nodes[node.inputs[0]].types)):
            return "it is a field that its value has not"
    return None


def _is_too_large(shape: tuple[int, ...]) -> bool:
    """Tell whether a value has more elements than can be counted in 64 bits."""
    elements = 1
    for extent in shape:
        elements *= max(extent, 1)
        if elements > LARGEST_INTEGER:
            return True
    return False


def _run_faults(runs: Iterable[Run], calls: int) -> Iterator[str]:
    named: set[str] = set()
    for run in runs:
        name = f"the run '{shown(run.id)}'"
        if run.id in named:
            yield f"{name}: there are two of this name"
        named.add(run.id)
        for candidate, cost in run.costs.items():
            wrong = cost_fault(cost)
            if wrong:
                yield f"{name}, the cost of '{shown(candidate)}': {wrong}"
        figures: list[Any] = [run.lower_bound_us, *run.seconds.values()]
        for base in run.baselines:
            figures += [base.estimated_us, *(base.spread_us or ())]
            if base.measured_us is not None and not base.measured_us > 0:
                yield f"{name}, baseline '{shown(base.name)}': it takes no time"
            figures.append(base.measured_us)
        wrong = times_fault(figures) or _figures_fault(run)
        if wrong:
            yield f"{name}: {wrong}"
        for placement in (run.placement, *run.rivals):
            if placement is not None:
                for wrong in _placement_faults(placement, calls):
                    yield f"{name}: {wrong}"


def _figures_fault(run: Run) -> str | None:
    """Returns what is wrong with the figures that only some runs have, if anything."""
    # Differences of two times may be negative: a cover may be faster than every baseline.
    differences = (run.optimality_loss_us, run.apparent_loss_us)
    times: list[float | None] = [None if us is None else abs(us) for us in differences]
    times.append(run.first_answer_s)
    counts = [run.threads, run.streams, *_numbers(run.candidates)]
    times += [left.us for left in run.residual]
    counts += [left.calls for left in run.residual]
    if any(row.latency_us == 0 for row in run.shapes):
        return "one of its shapes takes no time"
    for row in run.shapes:
        times += [row.latency_us, row.best_single_us, *(row.spread_us or ()), row.items_per_s]
        counts += [row.items, row.partitions, row.distinct, row.measured, row.from_store]
    for way in run.deployments:
        times += [way.items_per_s, way.best_single_items_per_s]
        counts += [way.streams, way.threads]
    if run.accuracy is not None:
        times += [run.accuracy.float32_us, *(trial.estimated_us for trial in run.accuracy.tried)]
    if run.unmeasured is not None:
        times.append(run.unmeasured.share)
        counts += [run.unmeasured.candidates, run.unmeasured.contenders]
    for record in (run.memory, run.memory and run.memory.seen, run.sharing, run.tuning):
        counts += _numbers(record)
    if run.memory is not None:
        counts += run.memory.stored.values()
    if not all(0 <= number <= LARGEST_INTEGER for number in counts):
        return "it counts something with a number that is negative or larger than 2^63"
    return times_fault(times)


def _numbers(record: msgspec.Struct | None) -> list[int]:
    """Returns the whole numbers that a record holds."""
    held = [getattr(record, name) for name in record.__struct_fields__] if record else []
    return [value for value in held if type(value) is int]


def _placement_faults(placement: Placement, calls: int) -> Iterator[str]:
    seen: set[int] = set()
    if not placement.partitions:
        yield "its placement has no partitions"
    for part in placement.partitions:
        wrong = nodes_fault(part.nodes, calls) or times_fault((part.estimated_us, part.in_place_us))
        if not wrong and not seen.isdisjoint(part.nodes):
            wrong = "a node is in two partitions"
        if wrong:
            yield f"its partition '{shown(part.id)}': {wrong}"
        seen.update(part.nodes)
    for conversion in placement.conversions:
        if not 0 <= conversion.node < calls:
            yield f"it converts the value of node {conversion.node}, which is none"
    times = (placement.estimated_us, placement.measured_us, *(placement.spread_us or ()))
    wrong = times_fault(times)
    if not wrong and placement.measured_us is not None and not placement.measured_us > 0:
        wrong = "its placement takes no time"
    if wrong:
        yield wrong
