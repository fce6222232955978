"""Results on standard output, as tables for people and JSON for programs."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from collage_engine.records.placement import Run
from collage_engine.records.toolchain import ToolchainState
from collage_engine.report.numbers import time_text

_NOT_PRINTED = ("costs", "rivals")


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


def toolchain_table(states: tuple[ToolchainState, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("toolchain", "version", "devices", "state"):
        table.add_column(title)
    for state in states:
        if state.available:
            words = "available"
        else:
            words = state.reason or "not available"
            if state.install:
                words += f"\n→ {state.install}"
        table.add_row(state.name, state.version or "–", ", ".join(state.devices) or "–", words)
    return table


def print_run(run: Run, console: Console) -> None:
    """The placement, the baselines beside it, and what to trust."""
    placement = run.placement
    if placement is None:
        console.print("No placement.")
        return
    by_toolchain: dict[str, list[int]] = {}
    for part in placement.partitions:
        config = ",".join(f"{k}={v}" for k, v in part.config.items())
        name = f"{part.toolchain}[{config}]" if config else part.toolchain
        entry = by_toolchain.setdefault(name, [0, 0])
        entry[0] += 1
        entry[1] += len(part.nodes)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("toolchain")
    table.add_column("partitions", justify="right")
    table.add_column("nodes", justify="right")
    for name, (parts, nodes) in sorted(by_toolchain.items(), key=lambda item: -item[1][1]):
        table.add_row(name, str(parts), str(nodes))
    title = "Collage's placement" if run.winner == "collage" else f"Placement of {run.winner}"
    console.print(f"[bold]{title}[/] of {run.model['nodes']} nodes on {run.target}, "
                  f"{run.threads} thread{'s' if run.threads > 1 else ''}")  # fmt: skip
    console.print(table)
    console.print()
    console.print(latency_table(run))
    if run.max_rel_error is not None:
        console.print(f"\nlargest error against the model's own result: {run.max_rel_error:.1e}")
    counts = run.candidates
    console.print(
        f"candidates: {counts.enumerated} found, {counts.distinct} distinct, {counts.measured} "
        f"measured, {counts.from_store} from the store, {counts.invalid} invalid, "
        f"{counts.skipped} left unmeasured"
    )
    for pin in run.pins:
        price = f", price {time_text(pin.price_us)}" if pin.price_us is not None else ""
        reason = f": {pin.reason}" if pin.reason else ""
        console.print(f"pin {pin.pin}: {pin.state}{price}{reason}", markup=False)
    for warning in run.warnings:
        console.print(f"[yellow]warning:[/] {warning}")
    if run.artifact:
        console.print(f"\nartifact: {run.artifact}", markup=False)


def latency_table(run: Run) -> Table:
    """Collage and every baseline, fastest first, compared with the chosen one."""
    assert run.placement is not None
    chosen = run.placement.measured_us
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("kind")
    table.add_column("measured", justify="right")
    table.add_column("20–80 %", justify="right")
    table.add_column("against chosen", justify="right")
    table.add_column("estimated", justify="right")
    rows: list[tuple[float, tuple[str, ...]]] = []
    ours = run.placement if run.winner == "collage" else next(iter(run.rivals), None)
    if ours is not None:
        mark = " ← chosen" if run.winner == "collage" else ""
        rows.append(
            (ours.measured_us or float("inf"),
             ("Collage" + mark, f"{len(ours.partitions)} partitions", time_text(ours.measured_us),
              _spread(ours.spread_us), "" if mark else _delta(ours.measured_us, chosen),
              time_text(ours.estimated_us)))
        )  # fmt: skip
    for base in run.baselines:
        if base.measured_us is None:
            rows.append((float("inf"), (base.name, base.kind, "–", "", base.reason or "", "")))
            continue
        delta = _delta(base.measured_us, chosen) if base.name != run.winner else ""
        mark = " ← chosen" if base.name == run.winner else ""
        rows.append(
            (base.measured_us, (base.name + mark, base.kind, time_text(base.measured_us),
             _spread(base.spread_us), delta, time_text(base.estimated_us)))
        )  # fmt: skip
    for _, row in sorted(rows, key=lambda item: item[0]):
        table.add_row(*row)
    return table


def _delta(us: float | None, chosen: float | None) -> str:
    return "" if not us or not chosen else f"{(us / chosen - 1) * 100:+.1f} %"


def _spread(spread: tuple[float, float] | None) -> str:
    if spread is None:
        return ""
    return f"{time_text(spread[0])} – {time_text(spread[1])}"
