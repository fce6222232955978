"""Prints results on standard output, as tables for people and JSON for programs."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from collage_engine.cli.screen import MOST_ROWS, complain, say, show
from collage_engine.machine.worker import RemoteError
from collage_engine.records.answers import Comparison, ExplainAnswer
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.event import SHOWN
from collage_engine.records.format import border_words
from collage_engine.records.operators import NodeTitles
from collage_engine.records.placement import Diagnosis, Run
from collage_engine.records.precision import ranges
from collage_engine.records.toolchain import ToolchainState
from collage_engine.store.document import Document
from collage_engine.store.store import StoreInfo
from collage_engine.support.errors import Cancelled, CollageError, InfeasibleError, truncated
from collage_engine.support.text import counted, printable_json
from collage_engine.wording.amounts import (
    bytes_text,
    gain_text,
    signed_time,
    significant,
    time_text,
)
from collage_engine.wording.facts import changed_facts, run_facts, tolerance_sentences
from collage_engine.wording.sentences import (
    ABOUT_COLUMNS,
    best_of_each,
    price_text,
    status_text,
)
from collage_engine.wording.titles import register_toolchains, toolchain_title

_LOG = logging.getLogger(__name__)


def print_json(document: Any) -> None:
    """Print one JSON document on standard output."""
    data = msgspec.json.format(msgspec.json.encode(document), indent=2)
    sys.stdout.write(printable_json(data.decode()) + "\n")
    sys.stdout.flush()


def report_error(error: CollageError, options: argparse.Namespace) -> int:
    """Print one line on standard error (and, asked for JSON, what forbids a placement)."""
    if isinstance(error, InfeasibleError) and getattr(options, "json", False):
        print_json({"infeasible": {"reason": str(error), **error.details}})
    if isinstance(error, Cancelled):
        error = Cancelled("cancelled; what was measured is kept")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RemoteError):  # a defect, whose notes say where it is
        _LOG.exception("a defect in a child process")
    _LOG.error("%s: %s", type(error).__name__, error, extra=SHOWN)
    complain(f"collage: {truncated('; '.join(lines))}")
    return error.exit_status


def print_result(result: dict[str, Any]) -> None:
    """Print how an artifact for one shape did: its error, and its times where it was timed."""
    if "dims" in result:
        dims = " ".join(f"{name}={size}" for name, size in result["dims"].items())
        inputs = ", ".join(f"{n} {list(sizes)}" for n, sizes in result["inputs"].items())
        say(dims or inputs, style="bold")
    say(f"largest error against the sample: {result['max_rel_error']:.1e} (relative)")
    threads = counted(result["threads"], "thread")
    if "runs_per_s" in result:
        rate = significant(result["runs_per_s"])
        say(f"{rate} runs per second by {counted(result['streams'], 'instance')} with {threads}")
        if result["expected_runs_per_s"]:
            say(f"expected:  {significant(result['expected_runs_per_s'])} when it was exported")
    elif "median_us" in result:
        loaded, first = (time_text(result[of] * 1e6) for of in ("load_s", "first_result_s"))
        say(f"loaded in {loaded}, first result after {first}")
        figures = ", ".join(f"{of} {time_text(result[f'{of}_us'])}" for of in ("p50", "p90", "p99"))
        say(f"latency: {figures} ({counted(result['repeats'], 'run')}, {threads})")
        if result["expected_us"]:
            say(f"expected:  {time_text(result['expected_us'])} when it was exported")


def print_toolchains(states: Sequence[ToolchainState]) -> None:
    """Print which toolchains are here, and why others are missing and how to install them."""
    rows = [
        {
            "toolchain": state.title or state.name,
            "name": state.name,
            "version": state.version or "–",
            "targets": ", ".join(state.targets) or "–",
            "devices": ", ".join(state.devices) or "–",
            "state": "available" if state.available else "no device" if state.builds else "missing",
        }
        for state in states
    ]
    show(rows)
    for state in states:
        if not state.available or state.reason:
            what = "has no device here" if state.builds else "is missing"
            if state.available:
                what = "serves no other target here"
            say(f"{state.title or state.name} {what}: {state.reason or 'its probe gave no reason'}")
            if state.install:
                say(f"  to use it: {state.install}")


def print_candidates(candidates: Sequence[CandidateRecord], titles: NodeTitles) -> None:
    """Print one line for each candidate: toolchain, numbers and titles of its nodes, stored cost.

    Args:
        candidates: The candidates of a model.
        titles: What the nodes of the model are called.
    """
    rows = []
    for c in candidates:
        formats = border_words(c.takes, c.gives)
        calls = "; ".join(f"{name} ({', '.join(map(str, of))})" for name, of in c.composites)
        row = {
            "toolchain": toolchain_title(c.instance.id),
            "numbers": nodes_text(c.nodes),
            "nodes": titles.joined(c.nodes) + (f" ({formats})" if formats else ""),
            "cost": time_text(c.cost.us) if c.cost.usable else c.cost.state,
            "rules": " | ".join(filter(None, (c.rule, calls))),
        }
        rows.append(row)
    show(rows, right=("cost",), cut=("nodes", "rules"))
    distinct = len({c.key for c in candidates})
    unknown = sum(c.cost.state == "unknown" for c in candidates)
    counts = counted(len(candidates), "candidate")
    say(f"{counts}, {distinct:,} distinct, {unknown:,} not measured yet")


def nodes_text(nodes: Sequence[int]) -> str:
    """Write ascending operator numbers as ranges: ``0–10``, ``1,4–6``."""
    return ranges(nodes, ",", "–")


def print_node(answer: ExplainAnswer, document: Document, numbers: Sequence[int]) -> None:
    """Print which node is explained, why it runs where it does, and what else could run it.

    Args:
        answer: The explanation.
        document: The session's document.
        numbers: The operators of the name that was asked for, the explained one first.
    """
    register_toolchains(document.toolchains)
    number, calls = numbers[0], document.graph.nodes
    titles = NodeTitles(calls)
    names = "".join(f" '{name}'" for name in calls[number].onnx_nodes)
    about = f"node {number}: {titles[number]}{names}, internally {titles.lowered(number)}"
    say(about, style="bold")
    if document.graph.count_nodes(numbers) > 1:
        say(f"Several nodes have this name: {nodes_text(numbers)}; explain them by number.")
    print_explanation(answer)
    # How far outputs may be from the true ones, where the model's rounding decides on it.
    for sentence in tolerance_sentences(document.runs[-1]) if document.runs else ():
        say(sentence)


def print_explanation(answer: ExplainAnswer) -> None:
    """Print an explanation in sentences, then a table of what else could run the node."""
    for sentence in answer.words:
        say(sentence)
    choices = best_of_each(answer)
    if not choices:
        return
    rows = [
        {
            "": "→" if choice.status == "chosen" else "",
            "toolchain": toolchain_title(choice.toolchain),
            "nodes": choice.operators,
            "here": time_text(choice.here_us),
            "price": price_text(choice),
            "status": status_text(choice),
        }
        for choice in choices
    ]
    say()
    show(rows, right=("here", "price"), cut=("nodes", "status"))
    say(ABOUT_COLUMNS)
    say(f"--json has every candidate here: {counted(len(answer.candidates), 'candidate')}")


def print_comparison(comparison: Comparison, before: Run, after: Run, document: Document) -> None:
    """Print the latencies of two runs, their partitions by toolchain, and what changed."""
    from collage_engine.planning.explanation import node_names

    register_toolchains(document.toolchains)
    called = node_names(document.graph)
    a, b = comparison.measured_us
    titles = document.title(before), document.title(after)
    say(f"{titles[0]}: {time_text(a)}   {titles[1]}: {time_text(b)}")
    if comparison.against:
        by = (
            ""
            if comparison.delta_us is None
            else f"{signed_time(comparison.delta_us)} in common rounds, "
        )
        say(f"difference: {by}{comparison.against}")
    for name, (ours, theirs) in comparison.by_toolchain.items():
        say(f"{toolchain_title(name)}: {ours} → {counted(theirs, 'partition')}")
    changes = [change.change for change in comparison.nodes]
    say(f"{counted(changes.count('moved'), 'node')} moved, {changes.count('regrouped')} regrouped")
    by_way: dict[str, list[str]] = {}
    for change in comparison.nodes:
        if change.change != "same":
            old, new = toolchain_title(change.before), toolchain_title(change.after)
            way = f"{old} → {new}" if change.change == "moved" else f"{old}, other partitions"
            by_way.setdefault(way, []).append(called[change.node])
    rows = [{"": way, "nodes": ", ".join(names)} for way, names in by_way.items()]
    show(rows, cut=("nodes",))
    _print_changed_facts(before, after)


def print_diagnosis(diagnosis: Diagnosis, states: Sequence[ToolchainState]) -> None:
    """Print what a runtime made of a model, most expensive first, and what a placement changes."""
    register_toolchains(states)
    title = toolchain_title(diagnosis.toolchain)
    whole = f", a profiled run {time_text(diagnosis.measured_us)}" if diagnosis.measured_us else ""
    say(f"{title}: {time_text(diagnosis.layers_us)} in layers{whole}", style="bold")
    rows = []
    for node in diagnosis.nodes[:MOST_ROWS]:
        names = node.onnx_nodes
        fused = f"fused, {len(names)} nodes" if len(names) > 1 else "by itself"
        ran = {"fell back": f"fell back to {node.device}", "not seen": "in no layer by its name"}
        row = {
            "ONNX nodes": f"{names[0]} … {names[-1]}" if len(names) > 2 else ", ".join(names),
            "time": time_text(node.us),
            "ran as": ran.get(node.state, fused),
            "placed on": ", ".join(toolchain_title(name) for name in node.placed_on),
            "difference": signed_time(node.delta_us) if node.delta_us is not None else "",
        }
        rows.append(row)
    show(rows, cut=("ONNX nodes",))
    if len(diagnosis.nodes) > MOST_ROWS:
        say(f"and {counted(len(diagnosis.nodes) - MOST_ROWS, 'cheaper layer')} (--json has all)")
    for layer in diagnosis.inserted:
        say(f"of no ONNX node: {layer.calls} × {layer.name}, {time_text(layer.us)}")
    back = [node for node in diagnosis.nodes if node.state == "fell back"]
    if back:
        nodes = counted(sum(len(node.onnx_nodes) for node in back), "node")
        cost = sum(node.us or 0.0 for node in back)
        say(f"fell back: {nodes}, {time_text(cost)}", style="yellow")
    if diagnosis.placement_us is not None:
        before = diagnosis.alone_us or diagnosis.measured_us or diagnosis.layers_us
        how = "in common rounds" if diagnosis.alone_us else "as it was profiled"
        gain = f" ({gain_text(diagnosis.placement_us, before)})" if before else ""
        placement = f"the placement: {time_text(diagnosis.placement_us)}{gain}"
        say(f"{title} {how}: {time_text(before)}; {placement}")
        if diagnosis.alone_us and (diagnosis.layers_us or 0.0) > diagnosis.alone_us:
            say(
                f"{title} is slower while it is profiled: without that, the placement saves less "
                "in a layer than the table says"
            )
    for warning in diagnosis.warnings:
        say(warning, style="yellow")


def _print_changed_facts(before: Run, after: Run) -> None:
    """Print what else differs: limits, pins, accuracy, memory, formats, tuning."""
    rows = [
        {"": f"{fact.group}: {fact.name}", "before": old or "–", "after": new or "–"}
        for fact, old, new in changed_facts(run_facts(before), run_facts(after))
        if old != new and fact.group != "Candidates"
    ]
    if rows:
        say()
    show(rows, cut=("before", "after"))


def print_store(info: StoreInfo) -> None:
    """Print where the measurements are, how many, of what and since when."""
    say(f"compiled kernels: {info.kernels}, {bytes_text(info.kernel_bytes)}")
    say(f"file: {info.path}")
    if not info.exists:
        say("it does not exist yet: nothing has been measured")
        return
    if not info.writable:
        say("it cannot be written here: what it holds is used, and new measurements are not kept")
    say(f"size: {bytes_text(info.bytes)}")
    say(f"measurements: {info.measurements}, of them {info.invalid} invalid")
    for name, count in (*info.toolchains.items(), *info.devices.items()):
        say(f"  {name}: {count}")
    say(f"constants of this machine: {info.constants}")
    if info.oldest:
        say(f"measured from {info.oldest} to {info.newest}")
