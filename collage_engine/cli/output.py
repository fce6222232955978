"""Results on standard output, as tables for people and JSON for programs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from collage_engine.cli.screen import Columns, columns, say, show
from collage_engine.drawing.facts import changed_facts, run_facts
from collage_engine.records.answers import ExplainAnswer
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.comparison import Comparison
from collage_engine.records.cost import Cost
from collage_engine.records.errors import CollageError
from collage_engine.records.format import border_words
from collage_engine.records.placement import Placement, Run
from collage_engine.records.toolchain import ToolchainState
from collage_engine.report.numbers import (
    accuracy_sentences,
    against_text,
    bytes_text,
    counted,
    instance_text,
    memory_text,
    spread_text,
    time_text,
)
from collage_engine.report.rows import KINDS, baseline_name, latency_rows
from collage_engine.session.document import Document

_NOT_PRINTED = ("costs", "rivals", "tables")
NARROW = 90
"""Below this many columns a latency table leaves its estimates out."""
MOST_EXPLAINED = 20
"""Candidates of one node that ``explain`` lists; all of them with ``--json``."""


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    data = msgspec.json.format(msgspec.json.encode(document), indent=2)
    sys.stdout.write(data.decode() + "\n")
    sys.stdout.flush()


def run_document(run: Run) -> dict[str, Any]:
    """A run as ``place --json`` prints it."""
    data = msgspec.to_builtins(run)
    for name in _NOT_PRINTED:
        data.pop(name, None)
    return data


def print_toolchains(states: Sequence[ToolchainState]) -> None:
    """What is here with its version; what is missing with its reason and how to get it."""
    made = Columns("toolchain", "version", "targets", "devices", "state")
    for state in states:
        words = "available" if state.available else "no device" if state.builds else "missing"
        targets, devices = (", ".join(names) or "–" for names in (state.targets, state.devices))
        made.add(state.name, state.version or "–", targets, devices, words)
    show(made.table)
    for state in states:
        if not state.available:
            words = "has no device here" if state.builds else "is missing"
            say(f"{state.name} {words}: {state.reason or 'its probe gave no reason'}")
            if state.install:
                say(f"  to install it: {state.install}")


def say_artifact(folder: str) -> None:
    """Where it is, and what it needs beside what lies in it."""
    from collage_engine.artifact.manifest import requirements

    say(f"artifact: {folder}")
    with contextlib.suppress(CollageError):  # a stored run's may be gone since
        for text in requirements(Path(folder)):
            say(f"  {text}")


def print_run(run: Run) -> None:
    """The placement, the baselines beside it, and what to trust."""
    placement = run.placement
    if placement is None:
        say("No placement.")
        return
    if placement.measured_us is None and run.winner == "unmeasured":
        say(
            f"Compiled for {run.target}, not measured: {run.note.partition(',')[0]}, "
            f"{counted(len(placement.partitions), 'partition')}",
            style="bold",
        )
        for warning in run.warnings:
            say(f"warning: {warning}", style="yellow")
        if run.artifact:
            say_artifact(run.artifact)
        return
    whose = "Collage's placement" if run.winner == "collage" else f"the baseline {run.winner}"
    say(
        f"Chosen: {whose}, {time_text(placement.measured_us)} for "
        f"{counted(run.model['nodes'], 'node')} in "
        f"{counted(len(placement.partitions), 'partition')} on {run.target} with "
        f"{counted(run.threads, 'thread')}",
        style="bold",
    )
    by_toolchain: dict[str, list[int]] = {}
    for part in placement.partitions:
        entry = by_toolchain.setdefault(instance_text(part.toolchain, part.config), [0, 0])
        entry[0] += 1
        entry[1] += len(part.nodes)
    if by_toolchain:
        made = Columns("toolchain", "partitions", "nodes", right=("partitions", "nodes"))
        for name, (parts, nodes) in sorted(by_toolchain.items(), key=lambda item: -item[1][1]):
            made.add(name, str(parts), str(nodes))
        show(made.table)
    if placement.conversions or any(p.takes or p.gives for p in placement.partitions):
        say(formats_text(placement))
    say()
    show(latency_table(run, columns()))
    if run.tied:
        say("→ chosen, on rounds before these   = as fast, as far as these rounds can tell")
    for row in latency_rows(run):
        if row.reason is not None:
            say(f"{row.name} ({row.kind}) has no time: {row.reason}")
    say()
    if placement.estimated_us is not None and placement.additive_error_us is not None:
        off = placement.additive_error_us
        say(
            f"estimated: {time_text(placement.estimated_us)}, the sum of its partitions, launches "
            f"and hand-overs; measured, it takes {time_text(abs(off))} "
            f"{'more' if off >= 0 else 'less'}"
        )
    if run.accuracy is None and run.max_rel_error is not None:
        say(f"largest error against the model's own result: {run.max_rel_error:.1e} (relative)")
    for sentence in accuracy_sentences(run):
        say(sentence)
    if run.memory is not None:
        say(f"memory: {memory_text(run.memory)}")
    counts = run.candidates
    say(
        f"candidates: {counts.enumerated} found, {counts.distinct} distinct, {counts.measured} "
        f"measured, {counts.from_store} from the store, {counts.invalid} invalid, "
        f"{counts.skipped} left unmeasured"
        + (
            f" ({counts.proven} proven, {counts.assumed} assumed not to matter)"
            if counts.proven or counts.assumed
            else ""
        )
    )
    for pin in run.pins:
        price = f"price {time_text(pin.price_us)}" if pin.price_us is not None else ""
        told = pin.reason or price  # the reason tells the price
        say(f"pin {pin.pin}: {pin.state}{f': {told}' if told else ''}")
    for limit in run.limits:
        say(f"limit {limit.reason or f'{limit.text}: {limit.state}'}")
    for base in run.baselines:
        if base.barred:
            say(f"{baseline_name(base)} ({KINDS[base.kind]}) is {base.barred}")
    for warning in run.warnings:
        say(f"warning: {warning}", style="yellow")
    if run.artifact:
        say_artifact(run.artifact)


def formats_text(placement: Placement) -> str:
    """``12 of 14 partitions take or give nhwc; 2 values are converted once each, 24 µs in all``."""
    parts = placement.partitions
    names = {name for p in parts for name in (*p.takes.values(), *p.gives.values())}
    count = sum(bool(p.takes or p.gives) for p in parts)
    text = f"{count} of {counted(len(parts), 'partition')} take or give {', '.join(sorted(names))}"
    times = [c.us for c in placement.conversions]
    if not times:
        return f"{text}; nothing is converted"
    known = [us for us in times if us is not None]
    took = f", {time_text(sum(known))} in all" if len(known) == len(times) else ""
    are = "is converted once" if len(times) == 1 else "are converted once each"
    return f"{text}; {counted(len(times), 'value')} {are}{took}"


def candidate_text(c: CandidateRecord) -> str:
    """Operators of a candidate, and its formats where they are not plain."""
    words = border_words(c.takes, c.gives)
    return operators_text(c.label) + (f" ({words})" if words else "")


def latency_table(run: Run, width: int) -> Table:
    """Collage and every baseline that has a time, fastest first, against the chosen one (→)."""
    reference = run.placement.measured_us if run.placement else None
    numbers = ("measured", "20–80 %", "against →", "estimated")
    shown = numbers if width >= NARROW else numbers[:-1]
    made = Columns("", "placement", "kind", *shown, right=numbers, cut=("placement",))
    for row in latency_rows(run):
        if row.us is None:
            continue
        against = "" if row.chosen else against_text(row.us, reference)
        cells = (
            time_text(row.us),
            spread_text(row.spread_us, row.us),
            against,
            time_text(row.estimated_us),
        )
        mark = "→" if row.chosen else "=" if row.tied else ""
        style = "bold" if row.chosen else None
        made.add(mark, row.name, row.kind, *cells[: len(shown)], style=style)
    return made.table


def print_candidates(candidates: Sequence[CandidateRecord]) -> None:
    """One line a candidate: where, on what, and what it costs if that is in the store."""
    made = Columns(
        "toolchain",
        "nodes",
        "operators",
        "cost",
        "rules",
        right=("cost",),
        cut=("operators", "rules"),
    )
    for c in candidates:
        cost = time_text(c.cost.median_us) if c.cost.usable else c.cost.state
        made.add(
            c.instance.id,
            nodes_text(c.nodes),
            candidate_text(c),
            cost,
            f"{c.rule} | {c.calls_text}" if c.composites else c.rule,
        )
    show(made.table)
    distinct = len({c.key for c in candidates})
    unknown = sum(c.cost.state == "unknown" for c in candidates)
    say(f"{counted(len(candidates), 'candidate')}, {distinct} distinct, {unknown} not measured yet")


def operators_text(label: str) -> str:
    """``conv2d+add+relu``: operators without their namespace."""
    return label.replace("nn.", "")


def nodes_text(nodes: Sequence[int]) -> str:
    """``0–10``, ``1,4–6``: operator numbers, ascending."""
    parts: list[tuple[int, int]] = []
    for node in sorted(nodes):
        if parts and node == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], node)
        else:
            parts.append((node, node))
    return ",".join(str(a) if a == b else f"{a}–{b}" for a, b in parts)


def print_node(document: Document, numbers: Sequence[int]) -> None:
    """Which operator is explained."""
    calls = [node for node in document.graph.nodes if node.form == "call"]
    number = numbers[0]
    node = calls[number]
    names = f" ({', '.join(node.onnx_nodes)})" if node.onnx_nodes else ""
    say(f"node {number}: {operators_text(node.op)}{names}", style="bold")
    if len(numbers) > 1:
        say(f"this ONNX node became operators {nodes_text(numbers)}; explain them by number")


def print_explanation(answer: ExplainAnswer, exported: str | None = None) -> None:
    """The story in sentences, then the candidates that hold the node, best first.

    ``exported``: the candidate that the last run exported there, where another is chosen here.
    """
    for sentence in answer.words:
        say(sentence)
    if not answer.candidates:
        return
    within = any(c.cost.in_place for c in answer.candidates)
    numbers = ("cost", "20–80 %", *(("alone",) if within else ()), "regret")
    made = Columns(
        "", "toolchain", "nodes", "operators", *numbers, right=numbers, cut=("nodes", "operators")
    )
    shown = answer.candidates[:MOST_EXPLAINED]
    shown += tuple(c for c in answer.candidates[MOST_EXPLAINED:] if c.id == exported)
    for c in shown:
        cost = time_text(c.cost.median_us) if c.cost.usable else c.cost.state
        spread = None
        if c.cost.low_us is not None and c.cost.high_us is not None:
            spread = (c.cost.low_us, c.cost.high_us)
        made.add(
            "→"
            if c.id == answer.chosen
            else "•"
            if c.id == exported
            else "="
            if c.id in answer.ties
            else "",
            c.instance.id,
            nodes_text(c.nodes),
            candidate_text(c),
            cost,
            spread_text(spread, c.cost.median_us),
            *((_alone_text(c.cost),) if within else ()),
            time_text(answer.regrets.get(c.id)),
        )
    say()
    show(made.table)
    say(
        "→ chosen   regret: what the best cover with it costs more   = a tie: repeats, or "
        "measurements at another time, differ by more than that"
    )
    if exported not in (None, answer.chosen) and any(c.id == exported for c in shown):
        say("• what the run exported here: another cover was the fastest end to end")
    if within:
        say(
            "cost: within the model, seen in covers that were run, or predicted from these where "
            "alone has a ~"
        )
    left = len(answer.candidates) - len(shown)
    if left > 0:
        say(f"{left} more: --json lists them")
    for c in answer.candidates:
        if c.cost.state == "invalid":
            what = f"{c.instance.id} on {candidate_text(c)} ({nodes_text(c.nodes)})"
            say(f"invalid: {what}: {c.cost.reason}")


def _alone_text(cost: Cost) -> str:
    if not cost.in_place:
        return ""
    return ("~" if cost.in_place == "predicted" else "") + time_text(cost.alone_us)


def print_comparison(found: Comparison, names: tuple[str, str]) -> None:
    """Two runs: latencies, partitions a toolchain, and the nodes that changed."""
    a, b = found.measured_us
    say(f"{names[0]}: {time_text(a)}   {names[1]}: {time_text(b)}")
    if a is not None and b is not None:
        by = "none" if a == b else f"{signed(b - a)} ({against_text(b, a)})"
        say(f"difference: {by}")
    for name, (ours, theirs) in found.by_toolchain.items():
        say(f"{name}: {ours} → {counted(theirs, 'partition')}")
    moved = [change for change in found.nodes if change.change == "moved"]
    regrouped = [change.node for change in found.nodes if change.change == "regrouped"]
    say(f"{counted(len(moved), 'node')} moved, {len(regrouped)} regrouped")
    by_way: dict[tuple[str, str], list[int]] = {}
    for change in moved:
        by_way.setdefault((change.before or "–", change.after or "–"), []).append(change.node)
    for (old, new), nodes in by_way.items():
        say(f"  {old} → {new}: {nodes_text(nodes)}")
    if regrouped:
        say(f"  in other partitions of the same toolchain: {nodes_text(regrouped)}")


def print_changed_facts(before: Run, after: Run) -> None:
    """What else differs: limits, pins, accuracy, memory, formats, tuning."""
    made = Columns("", "before", "after", cut=("before", "after"))
    rows = [
        (f"{fact.group}: {fact.name}", old or "–", new or "–")
        for fact, old, new in changed_facts(run_facts(before), run_facts(after))
        if old != new and fact.group != "Candidates"
    ]
    for row in rows:
        made.add(*row)
    if rows:
        say()
        show(made.table)


def signed(us: float) -> str:
    return ("+" if us > 0 else "−") + time_text(abs(us))


def print_store(info: dict[str, Any]) -> None:
    """Where the measurements are, how many, of what and since when."""
    say(f"file: {info['path']}")
    if not info["exists"]:
        say("it does not exist yet: nothing has been measured")
        return
    say(f"size: {bytes_text(info['bytes'])}")
    say(f"measurements: {info['measurements']}, of them {info['invalid']} invalid")
    for kind in ("toolchains", "devices"):
        for name, count in info[kind].items():
            say(f"  {name}: {count}")
    say(f"constants of this machine: {info['constants']}")
    if info["oldest"]:
        say(f"measured from {info['oldest']} to {info['newest']}")
