"""A run on standard output: the placement, the baselines beside it, and what to trust."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collage_engine.cli.screen import say, show
from collage_engine.records.placement import Placement, Run
from collage_engine.support.errors import CollageError
from collage_engine.support.text import counted
from collage_engine.wording.amounts import as_sentence, spread_text, time_text
from collage_engine.wording.facts import fact_lines, placement_facts, run_facts
from collage_engine.wording.figures import (
    clocks_text,
    ending_sentences,
    estimate_text,
    verdict_sentence,
)
from collage_engine.wording.latencies import (
    NUMBERS,
    deployment_cells,
    latency_rows,
    objective_sentences,
    shape_cells,
    sharing_sentences,
)
from collage_engine.wording.titles import register_toolchains, toolchain_title

if TYPE_CHECKING:
    from collage_engine.farm.several_runs import ShapesPlaced


def print_shapes(placed: ShapesPlaced, warned: Collection[str] = ()) -> None:
    """Print the table of shapes that were placed together, and what their artifact shares.

    ``warned``: warnings that were shown before; they are not said again.
    """
    for run in placed.runs:
        register_toolchains(run.toolchains)
    _print_warnings(placed.runs, warned)
    show([shape_cells(row) for row in placed.rows], right=NUMBERS, cut=("toolchains",))
    for sentence in sharing_sentences(len(placed.rows), placed.sharing):
        say(sentence)
    if placed.session is not None:
        say(f"session: {placed.session}")
    if placed.artifact:
        say_artifact(placed.artifact)


NOT_PRINTED = ("costs", "rivals", "tables")
"""Fields of a run that only sessions and the desktop need; together they are megabytes."""


def run_document(run: Run) -> dict[str, Any]:
    """Return a run as ``place --json`` prints it."""
    data: dict[str, Any] = msgspec.to_builtins(run)
    for name in NOT_PRINTED:
        data.pop(name, None)
    return data


def print_run(run: Run, warned: Collection[str] = ()) -> None:
    """Print what a run chose, what it was compared with, and how far to trust that.

    Args:
        run: The run.
        warned: Warnings that were shown while it went on; they are not said again.
    """
    register_toolchains(run.toolchains)
    placement = run.placement
    if placement is None:
        say("No placement.")
        return
    _print_warnings([run], warned)
    say(verdict_sentence(run), style="bold")
    say(
        f"{counted(run.model['nodes'], 'node')} in "
        f"{counted(len(placement.partitions), 'partition')} on {run.target} with "
        f"{counted(run.threads, 'thread')}"
    )
    if run.winner == "unmeasured":  # compiled for a device that is not here
        say(f"not measured: {run.note}")
    else:
        _print_measured(run, placement)
    if run.artifact:
        say_artifact(run.artifact)


def _print_measured(run: Run, placement: Placement) -> None:
    _print_toolchains(placement)
    _print_latencies(run)
    _print_objective(run)
    say()
    expected = estimate_text(placement)
    if run.objective == "latency" and expected:
        say(as_sentence(expected))
    if clocks := clocks_text(run.machine):
        say(f"Processor clocks at the beginning and the end: {clocks}")
    for line in fact_lines(
        run_facts(run), ("Farm", "Accuracy", "Pins", "Limits", "Memory", "Candidates")
    ):
        say(line)
    for sentence in ending_sentences(run):
        say(sentence)


def _print_toolchains(placement: Placement) -> None:
    nodes: Counter[str] = Counter()
    for part in placement.partitions:
        nodes[part.instance] += part.size
    partitions = Counter(part.instance for part in placement.partitions)
    rows = [
        {
            "toolchain": toolchain_title(name),
            "partitions": str(partitions[name]),
            "nodes": str(count),
        }
        for name, count in nodes.most_common()
    ]
    show(rows, right=("partitions", "nodes"))
    for line in fact_lines(placement_facts(placement), ["Formats"]):
        say(line)


def _print_latencies(run: Run) -> None:
    """Print Collage and all timed baselines, fastest first, against the chosen (→)."""
    reference = run.placement.measured_us if run.placement else None
    timed = [
        {
            "": "→" if row.chosen else "=" if row.tied else "",
            "placement": row.name,
            "kind": row.about,
            "measured": time_text(row.us),
            "20–80 %": spread_text(row.timed.spread_us, row.us),
            "against →": row.against(reference),
            "expected": time_text(row.timed.estimated_us),
        }
        for row in latency_rows(run)
        if row.us is not None
    ]
    say()
    show(timed, right=("measured", "20–80 %", "against →", "expected"), cut=("placement",))
    if run.tied:
        say("→ is exported; = is as fast as →, as far as their common rounds can tell.")
    for row in latency_rows(run):
        if row.reason is not None:
            kind = "" if row.name.endswith(row.kind) else f" ({row.kind})"
            say(f"{row.name}{kind} has no time: {row.reason}")
        if row.barred is not None:
            say(f"{row.name} ({row.kind}) may not be exported: {row.barred}")


def _print_objective(run: Run) -> None:
    """Print what the times are of, and the ways of sharing the processors that were tried."""
    for sentence in objective_sentences(run):
        say(sentence)
    rows = [
        {"": "→" if row.run == run.id else ""} | deployment_cells(row) for row in run.deployments
    ]
    show(rows, right=NUMBERS, cut=("toolchains",))


def _print_warnings(runs: Sequence[Run], warned: Collection[str]) -> None:
    """Print what is to be known before any number is read, once, unless it was shown before."""
    for warning in dict.fromkeys(text for run in runs for text in run.warnings):
        if warning not in warned:
            say(f"warning: {warning}", style="yellow")


def say_artifact(folder: str) -> None:
    """Print where an artifact is, and what it needs beside what lies in it."""
    from collage_engine.artifact.manifest import read_manifest

    say(f"artifact: {folder}")
    with contextlib.suppress(CollageError):  # a stored run's may be gone since
        for about in read_manifest(Path(folder)).get("requires", ()):
            say(f"  it needs Python: {about['reason']}")
