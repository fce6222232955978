"""Cost of the search against the size and shape of the graph, with memory.

    python -m tests.benchmarks.bench_search                     # the table
    python -m tests.benchmarks.bench_search --shapes chain --sizes 100,1000

Each row runs in a process of its own, so that its memory is its own. For machines that others
load, ``--cpu`` makes the search's time limits, and all seconds shown, those of processor time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import msgspec

from collage_engine.search.api import Search, solve
from collage_engine.search.problem import ProblemPin
from collage_engine.search.problem_json import read_problem
from tests.benchmarks.place import print_head, print_row
from tests.support.search_graphs import SHAPES, WIDE_SHAPES, problem_on


def measure(shape: str, size: int, pairs: bool, cpu: bool) -> None:
    """Print a row: a problem read, searched, and searched again after one pin."""
    clock = time.process_time if cpu else time.perf_counter
    if cpu:
        time.monotonic = time.process_time  # what all limits are held against
    graph = (SHAPES | WIDE_SHAPES)[shape](size)
    text = msgspec.json.encode(problem_on(graph, pairs=pairs))
    begun = clock()
    problem = read_problem(text)
    reading = clock() - begun
    begun = clock()
    search = Search(problem)
    answer = solve(problem, previous=search)
    searching = clock() - begun
    again = ""
    if answer.optimal and not search.solver.too_wide:
        other = {c.id: c for c in problem.candidates}[answer.cover[len(answer.cover) // 2]]
        pin = ProblemPin(nodes=other.nodes[:1], not_toolchain=other.toolchain)
        pinned = msgspec.structs.replace(problem, pins=(pin,))
        begun = clock()
        solve(pinned, previous=search)
        again = f"{clock() - begun:.3f}"
    seconds = (f"{reading:.3f}", f"{searching:.3f}", again)
    gap = f"{(answer.gap_us or 0.0) / (answer.cost_us or 1.0):.2%}"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    counts = (len(answer.regrets), answer.states, memory)
    about = (shape, pairs, len(problem.nodes), len(problem.candidates))
    print_row([*about, *seconds, answer.optimal, gap, *counts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default=",".join([*SHAPES, *WIDE_SHAPES]))
    parser.add_argument("--sizes", default="100,1000,10000")
    parser.add_argument("--cpu", action="store_true", help="limits and times of processor time")
    parser.add_argument("--pairs", action="store_true", help="only with pair costs")
    parser.add_argument("--row", nargs=3, help="print one row: shape, size, pairs or none")
    chosen = parser.parse_args()
    if chosen.row:
        shape, size, pairs = chosen.row
        measure(shape, int(size), pairs == "pairs", chosen.cpu)
        return
    print_head(
        "shape|pair costs|nodes|candidates|read s|search s|after one pin s|optimal|gap|"
        "exact regrets|states|MB"
    )
    for shape in chosen.shapes.split(","):
        for size in chosen.sizes.split(","):
            for pairs in ("pairs",) if chosen.pairs else ("none", "pairs"):
                command = [sys.executable, "-m", __spec__.name, "--row", shape, size, pairs]
                subprocess.run([*command, *(["--cpu"] if chosen.cpu else [])], check=True)


if __name__ == "__main__":
    main()
