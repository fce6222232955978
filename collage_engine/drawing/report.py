"""Renders a document (and one of its runs) as bytes of a report."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args

import msgspec

from collage_engine.drawing.exports import placement_graphml
from collage_engine.drawing.groups import equal_blocks, name_scopes, partitions_help
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.svg import placement_svg
from collage_engine.drawing.timeline import readers_of_partitions, timeline, timeline_svg, trace_of
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.format import border_words
from collage_engine.records.operators import NodeTitles
from collage_engine.records.placement import Run
from collage_engine.records.settings import ReportFormat
from collage_engine.records.versions import __version__
from collage_engine.store.document import Document
from collage_engine.support.errors import UsageError
from collage_engine.support.text import csv_table, printable, printable_json
from collage_engine.wording import figures, latencies
from collage_engine.wording.amounts import (
    DASH,
    as_sentence,
    bytes_text,
    moment_text,
    number_text,
    spread_text,
    time_text,
)
from collage_engine.wording.facts import (
    fact_lines,
    precision_text,
    run_facts,
)
from collage_engine.wording.layers import (
    MOST_PARTS,
    by_layer,
    compare_runs,
    folded,
    kernels_outside,
    left_to_win,
    partition_figures,
)
from collage_engine.wording.sentences import EXPECTED, ISOLATED, LAST_RUN, STAGE_TITLES
from collage_engine.wording.titles import register_toolchains, toolchain_title

Cells = dict[str, str]
"""The texts of a row of a table of the page, by the titles of their columns."""


def table(
    rows: Iterable[Cells], numbers: Sequence[str], chosen: Iterable[bool] = ()
) -> dict[str, Any]:
    """Return a table for the page.

    Args:
        rows: Its rows.
        numbers: The titles of columns of numbers.
        chosen: Whether each row stands out; none does by default.
    """
    return {"rows": list(itertools.zip_longest(rows, chosen)), "numbers": numbers}


def rates_and_bytes(document: Document, run: Run) -> dict[str, Any]:
    """Return the rates that each partition achieves and its bytes, the longest first."""
    if run.placement is None:
        return {}
    partitions = partition_figures(document.graph, run.placement)
    rows = [
        {
            "id": figure.partition.id,
            "toolchain": toolchain_title(figure.partition.instance),
            "time": time_text(figure.us),
            "GFLOP/s": DASH if figure.gflops is None else f"{figure.gflops:.3g}",
            "GB/s": DASH if figure.gigabytes_per_s is None else f"{figure.gigabytes_per_s:.3g}",
            "weights": bytes_text(figure.weights),
            "inputs": bytes_text(figure.inputs),
            "outputs": bytes_text(figure.outputs),
            "inside": bytes_text(figure.inside),
        }
        for figure in sorted(partitions, key=lambda each: -(each.us or 0.0))
    ]
    return table(rows, ("time", "GFLOP/s", "GB/s", "weights", "inputs", "outputs", "inside"))


def dearest_parts(document: Document, run: Run) -> dict[str, Any]:
    """Return the parts that cost most, with what other toolchains are known to take less."""
    if run.placement is None or not run.placement.layers:
        return {}
    titles, count = NodeTitles(document.graph.nodes), len(document.graph.nodes)
    candidates = {candidate.id: candidate for candidate in document.candidates}
    rows = [
        {
            "part": titles.joined(part.layer.nodes),
            "toolchain": toolchain_title(part.layer.instance),
            "time": time_text(part.us),
            "to win": time_text(part.won_us),
            "with": toolchain_title(part.rival) if part.won_us else DASH,
        }
        for part in left_to_win(run.placement, candidates, run, count)[:MOST_PARTS]
    ]
    return table(rows, ("time", "to win"))


def other_runs(document: Document, run: Run) -> dict[str, Any]:
    """Return the session's runs: times, the machine's drift, and what runs elsewhere."""
    rows = []
    for other in document.runs:
        changes = [change.change for change in compare_runs(run, other, document.graph).nodes]
        is_this = other.id == run.id
        against = figures.difference(other.placement, other, run.placement, run)
        rows.append(
            {
                "run": document.title(other),
                "exported": figures.winner_title(other),
                "partitions": str(len(other.placement.partitions)) if other.placement else DASH,
                "latency": time_text(figures.latency_us(other.placement)),
                "against this run": "" if is_this or against is None else against.text,
                "drift of the baselines": (
                    "" if is_this else figures.drift_text(other, run, document.title(run))
                ),
                "moved": number_text(changes.count("moved")),
                "regrouped": number_text(changes.count("regrouped")),
                "threads": str(other.threads),
                "started": moment_text(other.started_at),
                "note": other.note,
            }
        )
    numbers = ("partitions", "latency", "against this run", "moved", "regrouped", "threads")
    return table(rows, numbers, (other.id == run.id for other in document.runs))


def counts_and_stages(run: Run) -> list[str]:
    """Return how many candidates there were, and how long the stages took."""
    said = [f"{line}." for line in fact_lines(run_facts(run), ("Candidates",))]
    if run.seconds:
        stages = ", ".join(
            f"{STAGE_TITLES.get(name, name).lower()} {seconds:.1f} s"
            for name, seconds in run.seconds.items()
        )
        said.append(f"The stages took: {stages}.")
    return said


GRADIENT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e69f00"}]
"""Model Explorer's colours of the cheapest and the most expensive node."""
FACTS = ("Accuracy", "Limits", "Memory", "Pins", "Tuning")
"""Groups of facts that the page of a report shows as they are."""
Table = list[dict[str, Any]]
"""The rows of a table, each with its cells by the titles of the columns."""


def render(document: Document, kind: ReportFormat, run: Run | None = None) -> bytes:
    """Render the report of a run.

    Args:
        document: The session's document.
        kind: The format of the report.
        run: The run; the newest by default.

    Returns:
        The bytes of the report's file.

    Raises:
        UsageError: The session holds no run yet, or there is no such format.
    """
    formats = get_args(ReportFormat)
    if kind not in formats:
        raise UsageError(
            f"there is no report of the format {kind!r}; there are {', '.join(formats)}"
        )
    if run is None:
        if not document.runs:
            raise UsageError("the session holds no run yet, so there is nothing to report")
        run = document.runs[-1]
    register_toolchains((*document.toolchains, *run.toolchains))
    if kind in TABLES:
        rows = TABLES[kind](document, run)
        if not rows:
            raise UsageError(f"a report of the format {kind!r} of this run would have no row")
        return csv_table(list(rows[0]), (row.values() for row in rows)).encode()
    if kind == "json":
        return printable_json(report_json(document, run).decode()).encode()
    if kind == "explorer":
        return printable_json(msgspec.json.encode(node_data(document, run)).decode()).encode()
    if kind in ("timeline", "trace") and (run.placement is None or not run.placement.layers):
        raise UsageError("the layers of this run were not timed; a new run times them")
    if kind == "timeline":
        text = run_over_time(document, run)
    elif kind == "trace":
        assert run.placement is not None
        pairs = readers_of_partitions(OperatorGraph(document.graph), run.placement)
        text = json.dumps(trace_of(run.placement, pairs, document.title(run)))
    elif kind == "svg":
        text = placement_svg(document.graph, run.placement)
    elif kind == "graphml":
        text = placement_graphml(document.graph, run.placement).decode()
    else:
        text = _html(document, run, f"{'report' if kind == 'html' else kind}.html.j2")
    # Names may hold what no XML file may, and what would move a reader's terminal.
    return printable(text, keep_lines=True).encode()


def run_over_time(
    document: Document, run: Run, *, dark: bool = False, is_folded: bool = False
) -> str:
    """Return the timeline of a run as SVG; empty where its layers were not timed.

    Args:
        document: The session's document.
        run: The run.
        dark: Whether the background is dark.
        is_folded: Whether equal blocks are drawn as one; it is empty where there are none.
    """
    graph, placement = OperatorGraph(document.graph), run.placement
    if placement is not None and is_folded:
        placement = folded(placement, equal_blocks(graph, name_scopes(graph)))
        if not any(layer.blocks > 1 for layer in placement.layers):
            return ""
    if placement is None or not placement.layers:
        return ""
    return timeline_svg(timeline(graph, placement), dark=dark)


def node_data(document: Document, run: Run) -> dict[str, Any]:
    """Return costs by ONNX node, as Model Explorer reads custom data of nodes.

    They are in µs. A node has one where it is a partition or a layer by itself: the time of several
    is not shared out among them. The format is ``GraphNodeData`` of Model Explorer's API; its
    adapter for ONNX calls nodes by the names that they have in the file, so that it shows nothing
    of nodes without a name.
    """
    results, calls = {}, document.graph.nodes
    for part in by_layer(run.placement).partitions if run.placement else ():
        us = part.in_place_us if part.in_place_us is not None else part.estimated_us
        names = part.onnx_nodes or {name for k in part.nodes for name in calls[k].onnx_nodes}
        if us is not None and len(names) == 1:
            results[next(iter(names))] = {"value": round(us, 3)}
    return {"results": results, "gradient": GRADIENT}


def candidate_table(document: Document, run: Run) -> Table:
    """Return every candidate, one row each, with all its names.

    ``expected_us`` is the cost that the search uses, ``isolated_us`` the one measured by itself,
    and ``last_run_us`` the time in the confirmed run, which only candidates of its placement have.
    """
    chosen = {}
    if run.placement:
        chosen = {part.candidate: part for part in run.placement.partitions}
    names = [call.onnx_nodes for call in document.graph.nodes]

    def row(c: CandidateRecord) -> dict[str, Any]:
        cost, part = run.costs.get(c.id, c.cost), chosen.get(c.id)
        return {
            "candidate": c.id,
            "partition": part.id if part else "",
            "toolchain": c.instance.id,
            "operators": c.label,
            "nodes": " ".join(map(str, c.nodes)),
            "onnx_nodes": " ".join(dict.fromkeys(n for k in c.nodes for n in names[k])),
            "formats": border_words(c.takes, c.gives),
            "rule": c.rule,
            "state": cost.state,
            "median_us": cost.median_us,
            "low_us": cost.low_us,
            "high_us": cost.high_us,
            "repeats": cost.count,
            "expected_us": cost.us,
            "isolated_us": figures.isolated_us(cost),
            "last_run_us": part.in_place_us if part else None,
            "reason": cost.reason,
        }

    return list(map(row, document.candidates))


def latency_table(document: Document, run: Run) -> Table:
    """Return a run's placement beside its baselines, fastest first, one row each."""
    chosen = figures.latency_us(run.placement)
    return [
        {
            "run": document.title(run),
            "placement": row.name,
            "kind": row.kind,
            "measured_us": row.us,
            **_range(row.timed.spread_us),
            "expected_us": row.timed.estimated_us,
            "against_chosen_percent": None
            if row.us is None or not chosen
            else 100 * (row.us / chosen - 1),
            "chosen": row.chosen,
            "tied": row.tied,
            "reason": row.reason or row.barred,
        }
        for row in latencies.latency_rows(run)
    ]


def _range(spread_us: tuple[float, float] | None) -> dict[str, float | None]:
    """Return the two cells of a spread."""
    low_us, high_us = spread_us or (None, None)
    return {"low_us": low_us, "high_us": high_us}


def shape_table(document: Document, run: Run) -> Table:
    """Return the shapes that were placed for one artifact, one row each."""
    return [
        {
            "shape": row.choice.text,
            "measured_us": row.latency_us,
            **_range(row.spread_us),
            "items": row.items,
            "items_per_s": row.items_per_s,
            "toolchains": " ".join(row.toolchains),
            "partitions": row.partitions,
            "best_single": row.best_single,
            "best_single_us": row.best_single_us,
            "gain": row.gain,
            "candidates": row.distinct,
            "measured_candidates": row.measured,
            "candidates_from_store": row.from_store,
        }
        for row in run.shapes
    ]


def run_table(document: Document, run: Run) -> Table:
    """Return every run of a document, the oldest first, one row each."""
    return [
        {
            "id": run.id,
            "run": document.title(run),
            "note": run.note,
            "started": run.started_at,
            "exported": figures.winner_title(run),
            "measured_us": None if run.placement is None else run.placement.measured_us,
            "expected_us": None if run.placement is None else run.placement.estimated_us,
            "partitions": None if run.placement is None else len(run.placement.partitions),
            "threads": run.threads,
            "device": run.device,
            "lower_bound_us": run.lower_bound_us,
            "max_rel_error": run.max_rel_error,
            "warnings": "; ".join(run.warnings),
        }
        for run in document.runs
    ]


TABLES: dict[str, Callable[[Document, Run], Table]] = {
    "csv": candidate_table,
    "latencies": latency_table,
    "shapes": shape_table,
    "runs": run_table,
}
"""The formats that are tables."""


def report_json(document: Document, run: Run) -> bytes:
    """Return the run, all runs in short, the candidates and the pins."""
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


def _html(document: Document, run: Run, name: str) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from collage_engine.support.files import resource

    template = resource(f"report/{name}")
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        time=time_text, title_of=toolchain_title, spread=spread_text, moment=moment_text
    )
    placement = run.placement
    nodes = document.graph.count_nodes(range(len(document.graph.nodes)))
    rows = latencies.latency_rows(run)
    context = {
        "version": __version__,
        "document": document,
        "run": run,
        "placement": placement,
        "latencies": rows,
        "longest_us": max((row.us for row in rows if row.us is not None), default=1.0),
        "partitions": placement.partitions if placement else (),
        "nodes_title": NodeTitles(document.graph.nodes).joined,
        "isolated_us": lambda part: (
            figures.isolated_us(run.costs[part.candidate]) if part.candidate in run.costs else None
        ),
        "precision_text": precision_text,
        "formats_text": border_words,
        "svg": placement_svg(document.graph, placement),
        "dark_svg": placement_svg(document.graph, placement, dark=True),
        "over_time": run_over_time(document, run),
        "dark_over_time": run_over_time(document, run, dark=True),
        "folded": run_over_time(document, run, is_folded=True),
        "dark_folded": run_over_time(document, run, dark=True, is_folded=True),
        "dearest": dearest_parts(document, run),
        "outside": kernels_outside(placement) if placement else (),
        "headline": figures.verdict_sentence(run),
        "remarks": figures.ending_sentences(run),
        "conditions": [pair for pair in figures.conditions(run) if pair[0] != "started"],
        "others": other_runs(document, run),
        "warnings": [as_sentence(warning) for warning in run.warnings],
        "rates": rates_and_bytes(document, run),
        "found": counts_and_stages(run),
        "collapsed": placement is not None and partitions_help(nodes, placement),
        "shapes": table(
            map(latencies.shape_cells, run.shapes),
            latencies.NUMBERS,
            (row.run == run.id for row in run.shapes),
        ),
        "sharing": latencies.sharing_sentences(len(run.shapes), run.sharing),
        "objective": latencies.objective_sentences(run),
        "deployments": table(
            map(latencies.deployment_cells, run.deployments),
            latencies.NUMBERS,
            (row.run == run.id for row in run.deployments),
        ),
        "sum": figures.partition_sum_text(placement) if placement else "",
        "words": {"isolated": ISOLATED, "expected": EXPECTED, "last_run": LAST_RUN},
        "facts": [fact for fact in run_facts(run) if fact.group in FACTS],
    }
    return environment.get_template(template.name).render(context)
