"""Horizontal and vertical anchor candidates on BERT-like models: are they worth it?

    python -m tests.benchmarks.bench_horizontal [MODEL …] [--threads N]

For each set of sibling matrix products that the anchor rules find (query, key and value
projections, bare or with their epilogues): what each toolchain takes for it as one candidate,
against the sum of its own best parts. Alone, as all candidates are timed, on the model's own
values; all of a set's contenders and parts in one session.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from collage_engine.candidates.inputs import representative_inputs
from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost
from collage_engine.records.settings import RunSettings
from collage_engine.timing.candidate_timing import Measuring
from collage_engine.timing.measurer import group_candidates
from tests.benchmarks.place import model_file

MOST_SETS = 6


def horizontal_sets(menu: Menu) -> list[tuple[int, ...]]:
    """Distinct sets (one of equal work) that a horizontal rule proposed, large ones first."""
    found: dict[str, tuple[int, ...]] = {}
    for record in menu.candidates:
        if "anchor" in record.rule and record.label.count("matmul") > 1:
            found.setdefault(record.label, record.nodes)
    return sorted(found.values(), key=len, reverse=True)[:MOST_SETS]


def best_parts(
    instance: str, nodes: Sequence[int], records: Sequence[Candidate], costs: dict[str, Cost]
) -> float | None:
    """Least sum of the instance's smaller candidates that make up the set."""
    least: dict[frozenset[int], float] = {frozenset(): 0.0}
    parts = [
        (frozenset(r.nodes), costs[r.key].median_us or 0.0)
        for r in records
        if r.instance.id == instance
        and len(r.nodes) < len(nodes)
        and set(r.nodes) <= set(nodes)
        and r.key in costs
        and costs[r.key].usable
    ]
    for first in sorted(nodes):
        for covered, us in list(least.items()):
            if first in covered:
                continue
            for part, cost in parts:
                if min(part - covered, default=-1) == first and not part & covered:
                    union = covered | part
                    least[union] = min(least.get(union, float("inf")), us + cost)
    return least.get(frozenset(nodes))


def report(name: str, settings: RunSettings, folder: Path) -> None:
    workspace = OpenModel(str(model_file(name, folder)), {})
    try:
        menu = workspace.menu(settings)
        inputs = representative_inputs(workspace.model, settings)
        with Measuring(workspace, menu, settings, inputs, RunControl()) as measuring:
            for nodes in horizontal_sets(menu):
                records = [r for r in menu.candidates if set(r.nodes) <= set(nodes)]
                groups = group_candidates(records)
                costs = measuring.measure_groups(groups, None, again=True).costs
                for r in records:
                    if r.nodes != nodes:
                        continue
                    whole, parts = costs[r.key], best_parts(r.instance.id, nodes, records, costs)
                    if not whole.usable:
                        print(f"| {name} | {r.label} | {r.instance.id} | – ({whole.reason}) | | |")
                        continue
                    us = whole.median_us or 0.0
                    gain = "" if parts is None else f"{1 - us / parts:.0%}"
                    print(
                        f"| {name} | {r.label} | {r.instance.id} | {us:.2f} | "
                        f"{'–' if parts is None else f'{parts:.2f}'} | {gain} |",
                        flush=True,
                    )
    finally:
        workspace.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["encoder", "bert"])
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    print("| model | together | toolchain | one candidate µs | its parts µs | gain |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.models:
            report(name, RunSettings(threads=chosen.threads), Path(folder))


if __name__ == "__main__":
    main()
