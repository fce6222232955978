"""Cost of the search against the size and shape of the graph, with memory.

    python -m tests.benchmarks.bench_search                     # the table
    python -m tests.benchmarks.bench_search --shapes chain --sizes 100,1000
    python -m tests.benchmarks.bench_search --random 20000      # long random checks

Each row runs in a process of its own, so that its memory is its own. For machines that others
load, ``--cpu`` makes the search's time limits, and all seconds shown, those of processor time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import Counter

import msgspec

from collage_engine.search.api import Search, solve
from collage_engine.search.problem import ProblemPin
from collage_engine.search.problem_json import read_problem
from tests.support.search_graphs import SHAPES, WIDE_SHAPES, problem_on


def row(shape: str, size: int, pairs: bool, cpu: bool) -> dict[str, object]:
    """One measured row: a problem read, searched, and searched again after one pin."""
    clock = time.process_time if cpu else time.perf_counter
    if cpu:
        time.monotonic = time.process_time  # what all limits are held against
    graph = (SHAPES | WIDE_SHAPES)[shape](size)
    text = msgspec.json.encode(problem_on(graph, pairs=pairs))
    begun = clock()
    problem = read_problem(text)
    reading = clock() - begun
    begun, busy = clock(), time.process_time()
    search = Search(problem)
    answer = solve(problem, previous=search)
    searching, working = clock() - begun, time.process_time() - busy
    again = None
    if answer.optimal and not search.solver.too_wide:
        other = {c.id: c for c in problem.candidates}[answer.cover[len(answer.cover) // 2]]
        pin = ProblemPin(nodes=other.nodes[:1], not_toolchain=other.toolchain)
        pinned = msgspec.structs.replace(problem, pins=(pin,))
        begun = clock()
        solve(pinned, previous=search)
        again = clock() - begun
    return {
        "shape": shape,
        "pairs": pairs,
        "nodes": len(problem.nodes),
        "candidates": len(problem.candidates),
        "read_s": round(reading, 3),
        "search_s": round(searching, 3),
        "cpu_s": round(working, 3),
        "again_s": None if again is None else round(again, 3),
        "optimal": answer.optimal,
        "gap": (answer.gap_us or 0.0) / (answer.cost_us or 1.0),
        "cost_us": answer.cost_us,
        "exact_regrets": len(answer.regrets),
        "states": answer.states,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def table(shapes: list[str], sizes: list[int], cpu: bool, costs: tuple[bool, ...]) -> None:
    print(
        "| shape | pair costs | nodes | candidates | read s | search s | (CPU s) | "
        "after one pin s | optimal | gap | exact regrets | states | MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for shape in shapes:
        for size in sizes:
            for pairs in costs:
                command = [sys.executable, "-m", __spec__.name, "--row", shape, str(size)]
                done = subprocess.run(
                    [*command, "pairs" if pairs else "none", *(["--cpu"] if cpu else [])],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                r = json.loads(done.stdout)
                again = "" if r["again_s"] is None else r["again_s"]
                print(
                    f"| {shape} | {'yes' if pairs else 'no'} | {r['nodes']} | {r['candidates']} "
                    f"| {r['read_s']} | {r['search_s']} | {r['cpu_s']} | {again} "
                    f"| {'yes' if r['optimal'] else 'no'} | {r['gap']:.2%} "
                    f"| {r['exact_regrets']} | {r['states']} | {r['memory_mb']} |",
                    flush=True,
                )


def random_checks(count: int, first_seed: int) -> None:
    """Brute force on ``count`` random problems, half of them made to be jointly cyclic."""
    from tests.unit.test_search_exact import compare

    tally: Counter[str] = Counter()
    begun = time.perf_counter()
    for seed in range(first_seed, first_seed + count):
        cyclic = seed % 2 == 0
        compare(seed, tally, cyclic=cyclic, nodes=9 if cyclic else 8)
    print(f"{dict(tally)}, mismatches 0, {time.perf_counter() - begun:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default=",".join([*SHAPES, *WIDE_SHAPES]))
    parser.add_argument("--sizes", default="100,1000,10000")
    parser.add_argument("--cpu", action="store_true", help="limits and times of processor time")
    parser.add_argument("--pairs", action="store_true", help="only with pair costs")
    parser.add_argument("--row", nargs=3)
    parser.add_argument("--random", type=int)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.row:
        shape, size, pairs = chosen.row
        print(json.dumps(row(shape, int(size), pairs == "pairs", chosen.cpu)))
    elif chosen.random:
        random_checks(chosen.random, chosen.seed)
    else:
        costs = (True,) if chosen.pairs else (False, True)
        table(
            chosen.shapes.split(","), [int(s) for s in chosen.sizes.split(",")], chosen.cpu, costs
        )


if __name__ == "__main__":
    main()
