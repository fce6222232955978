"""Renders a document (and one of its runs) as bytes of a report."""

from __future__ import annotations

import csv
import io
from typing import Any, Literal

import msgspec

from collage_engine import __version__
from collage_engine.drawing.accuracy import accuracy_sentences, precision_text
from collage_engine.drawing.facts import Fact, run_facts
from collage_engine.drawing.palette import learn
from collage_engine.drawing.time_spent import unmeasured_sentences
from collage_engine.records.errors import UsageError
from collage_engine.records.format import border_words
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.placement import Baseline, Partition, Placement, Run
from collage_engine.records.text import plain_cell
from collage_engine.report.graphml import placement_graphml
from collage_engine.report.numbers import (
    against_text,
    instance_text,
    spread_text,
    time_text,
)
from collage_engine.report.peers import (
    decode_peers,
    groups,
    headings,
    notes,
    table,
    verdicts,
)
from collage_engine.report.rows import KINDS, baseline_name, latency_rows
from collage_engine.session.document import Document

Format = Literal["html", "csv", "json", "svg", "graphml"]


def render(
    document: Document, kind: Format, run: Run | None = None, *, peers: bytes | None = None
) -> bytes:
    """The report of ``run`` (the newest by default). Raises UsageError without any run.

    ``peers``: a results file of ``tests.benchmarks.peers``, for a table of its own (HTML).
    """
    if run is None:
        if not document.runs:
            raise UsageError("the session holds no run yet, so there is nothing to report")
        run = document.runs[-1]
    learn((*document.toolchains, *run.toolchains))
    if kind == "csv":
        return candidates_csv(document, run).encode()
    if kind == "json":
        return report_json(document, run)
    if kind == "svg":
        return graph_svg(document, run).encode()
    if kind == "graphml":
        return placement_graphml(document.graph, run.placement)
    return _html(document, run, peers).encode()


def instance_name(part: Partition) -> str:
    """The toolchain of a partition with its configuration."""
    return instance_text(part.toolchain, part.config)


def candidates_csv(document: Document, run: Run) -> str:
    """Every candidate, one row each; ``partition`` names its part of the placement, if any.

    A text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    chosen = {}
    if run.placement:
        chosen = {part.candidate: part.id for part in run.placement.partitions}
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(
        [
            "candidate",
            "partition",
            "toolchain",
            "operators",
            "nodes",
            "onnx_nodes",
            "formats",
            "rule",
            "state",
            "median_us",
            "low_us",
            "high_us",
            "cold_us",
            "repeats",
            "reason",
        ]
    )
    names = onnx_names(document)
    for c in document.candidates:
        cost = run.costs.get(c.id, c.cost)
        cells = [
            c.id,
            chosen.get(c.id, ""),
            c.instance.id,
            c.label,
            " ".join(map(str, c.nodes)),
            " ".join(dict.fromkeys(n for k in c.nodes for n in names[k])),
            border_words(c.takes, c.gives),
            c.rule,
            cost.state,
            cost.median_us,
            cost.low_us,
            cost.high_us,
            cost.cold_us,
            cost.count,
            cost.reason,
        ]
        writer.writerow([plain_cell(c) if isinstance(c, str) else c for c in cells])
    return buffer.getvalue()


def onnx_names(document: Document) -> list[tuple[str, ...]]:
    """ONNX node names of each operator number."""
    return [node.onnx_nodes for node in document.graph.nodes if node.form == "call"]


def report_json(document: Document, run: Run) -> bytes:
    """The run, all runs in short, the candidates and the pins."""
    data = {
        "engine": __version__,
        "model": document.model,
        "run": run,
        "runs": [
            {
                "id": other.id,
                "name": other.name,
                "winner": other.winner,
                "measured_us": other.placement.measured_us if other.placement else None,
            }
            for other in document.runs
        ],
        "pins": document.pins,
        "candidates": document.candidates,
        "transitions": document.constants,
    }
    return msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"


def graph_svg(document: Document, run: Run) -> str:
    """The graph coloured by chosen toolchain."""
    from collage_engine.drawing.svg import placement_svg

    return placement_svg(document.graph, run.placement)


def _html(document: Document, run: Run, peers: bytes | None) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from collage_engine.resources import resource

    template = resource("report/report.html.j2")
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["time"] = time_text
    environment.filters["spread"] = spread_text
    return environment.get_template(template.name).render(
        **_context(document, run), peers=_peers(peers)
    )


def _context(document: Document, run: Run) -> dict[str, Any]:
    placement = run.placement
    return {
        "version": __version__,
        "document": document,
        "run": run,
        "placement": placement,
        "bars": _bars(run),
        "partitions": _partitions(document, placement),
        "matrix": transition_matrix(document, placement),
        "svg": graph_svg(document, run),
        "instance": instance_name,
        "headline": _headline(run),
        "accuracy": [*accuracy_sentences(run), *unmeasured_sentences(run)],
        "grouped": _grouped(run),
        "missing": [state for state in run.toolchains if not state.available],
    }


def _grouped(run: Run) -> dict[str, list[Fact]]:
    """Facts that have no table of their own, by heading."""
    found: dict[str, list[Fact]] = {}
    for fact in run_facts(run):
        if fact.group in ("Memory", "Tuning"):
            found.setdefault(fact.group, []).append(fact)
    return found


def _peers(data: bytes | None) -> dict[str, Any] | None:
    """The tables of a results file of the benchmark against other runtimes."""
    if data is None:
        return None
    result = decode_peers(data, "the results file")
    tables = []
    for heading, entries in groups(result):
        head, rows = table(entries)
        tables.append(
            {
                "heading": heading,
                "head": head,
                "rows": rows,
                "verdicts": verdicts(entries),
                "notes": notes(entries),
            }
        )
    return {"headings": headings(result), "tables": tables}


def _bars(run: Run) -> list[dict[str, Any]]:
    reference = run.placement.measured_us if run.placement else None
    rows = latency_rows(run)
    longest = max((row.us for row in rows if row.us is not None), default=1.0)
    return [
        {
            "row": row,
            "width": 100 * row.us / longest if row.us is not None else 0,
            "gain": "" if row.chosen else against_text(row.us, reference),
        }
        for row in rows
    ]


def _partitions(document: Document, placement: Placement | None) -> list[dict[str, Any]]:
    if placement is None:
        return []
    calls = [node for node in document.graph.nodes if node.form == "call"]
    rows = []
    for part in placement.partitions:
        labels = [calls[n].op.removeprefix("nn.") for n in part.nodes]
        if len(labels) > 8:
            labels = [*labels[:4], f"… {len(labels) - 6} more …", *labels[-2:]]
        rows.append(
            {
                "part": part,
                "name": instance_name(part),
                "label": " + ".join(labels),
                "precision": precision_text(part.precision, part.max_rel_error),
                "formats": border_words(part.takes, part.gives),
            }
        )
    return rows


def transition_matrix(document: Document, placement: Placement | None) -> dict[str, Any]:
    """How many values each toolchain hands to each other one (inputs of the model left out)."""
    if placement is None:
        return {"names": [], "rows": []}
    calls = [node.index for node in document.graph.nodes if node.form == "call"]
    number = {index: k for k, index in enumerate(calls)}
    owner = {n: part for part in placement.partitions for n in part.nodes}
    names = sorted({instance_name(part) for part in placement.partitions})
    counts = {(a, b): 0 for a in names for b in names}
    nodes = document.graph.nodes

    def producers(index: NodeIndex) -> list[int]:
        node = nodes[index]
        if node.form == "call":
            return [number[index]]
        if node.form in ("projection", "tuple"):
            return [p for source in node.inputs for p in producers(source)]
        return []

    for index in calls:
        reader = owner.get(number[index])
        if reader is None:
            continue
        for source in dict.fromkeys(nodes[index].inputs):
            for made in producers(source):
                maker = owner.get(made)
                if maker is not None and maker.id != reader.id:
                    counts[instance_name(maker), instance_name(reader)] += 1
    return {"names": names, "rows": [[counts[a, b] for b in names] for a in names]}


def _headline(run: Run) -> str:
    placement = run.placement
    if placement is None or placement.measured_us is None:
        return "The placement was not measured end to end."
    baselines = [
        base for base in run.baselines if base.measured_us is not None and base.name != run.winner
    ]
    if run.winner != "collage":
        won = next((base for base in run.baselines if base.name == run.winner), None)
        if won is not None and won.kind != "whole-model":
            return (
                f"The baseline {_named(won)} is right for this model: no placement of the "
                f"search's was faster than its {time_text(placement.measured_us)}."
            )
        name = run.winner if won is None else baseline_name(won)
        return (
            f"The baseline {name} is right for this model: no mixed placement was faster than its "
            f"{time_text(placement.measured_us)}."
        )
    if not baselines:
        return f"The placement takes {time_text(placement.measured_us)}."
    best = min(baselines, key=lambda base: base.measured_us or 0.0)
    assert best.measured_us is not None
    share = (best.measured_us / placement.measured_us - 1) * 100
    return (
        f"The placement takes {time_text(placement.measured_us)}; the best baseline, "
        f"{_named(best)}, takes {time_text(best.measured_us)}, {abs(share):.1f} % "
        f"{'more' if share >= 0 else 'less'}."
    )


def _named(base: Baseline) -> str:
    return f"{baseline_name(base)} ({KINDS[base.kind]})"
