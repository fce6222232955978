"""Checks whether the records of a session fit each other; asked when a file is opened.

A file may come from anybody. What is computed from its records later (the search, reports, the
desktop's picture) relies on what is checked here, and on the ranges of numbers that msgspec keeps
to (``records.ranges``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from collage_engine.records.checks import candidate_fault, cost_fault, nodes_fault, pin_fault
from collage_engine.records.errors import InvalidValue
from collage_engine.records.graph import OPEN_SIZE, GraphRecord, Node
from collage_engine.records.placement import Placement, Run
from collage_engine.records.ranges import LARGEST_INTEGER
from collage_engine.records.reasons import shown
from collage_engine.records.shapes import MOST_SHAPES
from collage_engine.session.document import Document


def check_document(document: Document) -> None:
    """Refuse a document whose records do not fit each other.

    Raises:
        InvalidValue: They do not; the sentence names the first record that is wrong.
    """
    for fault in _faults(document):
        raise InvalidValue(fault)


def _faults(document: Document) -> Iterator[str]:
    yield from _graph_faults(document.graph)
    calls = len(document.graph.calls)
    if document.model.nodes > calls:
        yield f"the model has {document.model.nodes} nodes and the graph {calls} operators"
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
    if any(extent < OPEN_SIZE for kind in node.types for extent in kind.shape):
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
        for placement in (run.placement, *run.rivals):
            if placement is not None:
                for wrong in _placement_faults(placement, calls):
                    yield f"{name}: {wrong}"


def _placement_faults(placement: Placement, calls: int) -> Iterator[str]:
    seen: set[int] = set()
    for part in placement.partitions:
        wrong = nodes_fault(part.nodes, calls)
        if not wrong and not seen.isdisjoint(part.nodes):
            wrong = "a node is in two partitions"
        if wrong:
            yield f"its partition '{shown(part.id)}': {wrong}"
        seen.update(part.nodes)
    for conversion in placement.conversions:
        if not 0 <= conversion.node < calls:
            yield f"it converts the value of node {conversion.node}, which is none"
