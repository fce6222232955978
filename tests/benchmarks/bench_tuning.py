"""What tuning gains: TVM's default kernels against tuned ones, operators and whole models.

    python -m tests.benchmarks.bench_tuning [--seconds 10] [--threads 1] [--rounds 15] [NAME …]

Cases are those of ``bench_tvm_ops``. Every kernel of a case is tuned for so many seconds, then both
forms of the whole case take turns in this process; at one thread in process CPU time, which other
work on the machine disturbs least. A ratio below 1 is what tuning gains.
"""

# ruff: noqa: E402 — TVM reads its thread settings when it loads

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

ARGUMENTS = argparse.ArgumentParser(description=__doc__.splitlines()[0])
ARGUMENTS.add_argument("names", nargs="*", help="cases to run; a few by default")
ARGUMENTS.add_argument("--threads", type=int, default=1)
ARGUMENTS.add_argument("--rounds", type=int, default=15)
ARGUMENTS.add_argument("--seconds", type=float, default=10.0, help="per kernel")
OPTIONS = ARGUMENTS.parse_args() if __name__ == "__main__" else ARGUMENTS.parse_args([])
os.environ.setdefault("TVM_NUM_THREADS", str(OPTIONS.threads))
os.environ.setdefault("TVM_BIND_THREADS", "0")
os.environ["COLLAGE_CACHE_DIR"] = tempfile.mkdtemp(prefix="collage-bench-")

from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of
from collage_engine.model.importer import import_onnx
from collage_engine.records.errors import ToolchainError
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from collage_engine.toolchains.tvm.tuning.tuner import TvmTuner
from collage_engine.tuning.choice import tuned_instance
from tests.benchmarks.bench_tvm_ops import CASES, LEAST_SECONDS, Case
from tests.support.toolchain_cases import default_instance

NAMES = (
    "conv3x3 64 56",
    "conv3x3 256 14",
    "conv3x3 512 7",
    "conv1x1 256-64 56",
    "conv1x1 1024-256 14",
    "conv1x1 512-2048 7",
    "depthwise 96 112",
    "depthwise 576 14",
    "matmul 128x768x768",
    "matmul gelu 128x768x3072",
    "fc 1x2048x1000",
    "attention 12x128x64",
    "matmul of inputs",
    "light_squeezenet",
    "mobilenet_v2",
)


def measure(case: Case) -> str:
    """A line of the table."""
    model = import_onnx(case.build())
    nodes = tuple(range(len(model.graph.operators)))
    instance = default_instance(TvmToolchain(), OPTIONS.threads)
    tuner = TvmTuner()
    table, tried, begun = {}, 0, time.perf_counter()
    tasks = tuner.tasks(function_of(model, instance, nodes, "w"))
    for task in tasks:
        try:
            record = tuner.tune(task, instance, None, OPTIONS.seconds, lambda _: None)
        except ToolchainError:
            continue
        tried += len(record.tried)
        if record.choice:
            table[task.workload] = record.choice
    spent = time.perf_counter() - begun
    values = model.random_inputs(seed=1)
    names = dict(zip(model.graph.record.inputs, model.graph.record.input_names, strict=True))
    runs = []
    for one in (instance, tuned_instance(instance, tuner.keep(table))):
        part = function_of(model, one, nodes, "whole")
        runs.append(compile_function(part).timer([values[names[i]] for i in part.inputs]))
    clock = time.process_time if OPTIONS.threads == 1 else time.perf_counter
    for run in runs:
        run(3)
    start = clock()
    runs[0](2)
    calls = max(1, int(2 * LEAST_SECONDS / max(clock() - start, 1e-7)))
    samples: tuple[list[float], list[float]] = ([], [])
    for _ in range(OPTIONS.rounds):
        for run, times in zip(runs, samples, strict=True):
            start = clock()
            run(calls)
            times.append((clock() - start) / calls)
    plain, better = (statistics.median(times) * 1e6 for times in samples)
    ratio = statistics.median(b / a for a, b in zip(*samples, strict=True))
    return (
        f"| {case.name} | {plain:.0f} | {better:.0f} | {ratio:.3f} | {len(table)} of {len(tasks)} "
        f"| {tried} | {spent:.0f} |"
    )


def main() -> None:
    print("| case | default us | tuned us | ratio | kernels improved | variants | tuning s |")
    print("|---|---|---|---|---|---|---|")
    wanted = OPTIONS.names or NAMES
    for case in CASES:
        if case.name in wanted:
            print(measure(case), flush=True)


if __name__ == "__main__":
    main()
