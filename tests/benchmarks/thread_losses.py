"""Where the time of several threads goes: the kernels of a model on TVM alone, at one and at all.

    python -m tests.benchmarks.thread_losses MODEL.onnx … [--threads 2] [--rounds 9] [--worst 12]

A model is compiled for one thread and for all, and both are timed in turn in one process, kernel by
kernel. What is lost against one thread's time divided by the number of threads is split up:

* ``serial``: work outside loops that threads share, by kernels without any and by the others;
* ``uneven``: pieces that cannot be dealt out evenly, or are fewer than threads;
* ``launch``: handing the loops to the threads, by what a loop without work takes;
* ``code``: what the code for several threads takes longer on one thread than that for one;
* ``memory``: the rest, of kernels that move at least half of the bytes per second that a copy of as
  much memory as the model has reaches;
* ``rest``: the rest of others, such as lines that lie in the other processor's cache;
* ``between``: calls between kernels.
"""

# ruff: noqa: E402 — TVM reads its thread settings when it loads

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import ceil, prod
from typing import Any

ARGUMENTS = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
ARGUMENTS.add_argument("models", nargs="*", metavar="MODEL")
ARGUMENTS.add_argument("--threads", type=int, default=2)
ARGUMENTS.add_argument("--rounds", type=int, default=9)
ARGUMENTS.add_argument("--worst", type=int, default=12, help="kernels to be shown")
OPTIONS = ARGUMENTS.parse_args() if __name__ == "__main__" else ARGUMENTS.parse_args([])
os.environ["TVM_NUM_THREADS"] = str(OPTIONS.threads)
os.environ["TVM_BIND_THREADS"] = "0"

import numpy as np
import tvm
from tvm import relax, s_tir, tirx
from tvm.tirx.stmt import For, ForKind

from collage_engine.build.stopwatch import time_kernels
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.tir_builder import (
    constant_value,
    f32,
    int64,
    load,
    loop,
    parallel,
    store,
    vectorized,
    workspace,
)
from collage_engine.lowering.compile import NativeCompiled
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.target import build_target, use_threads
from collage_engine.machine.clocks import round_trip_ns
from collage_engine.model.importer import import_model
from collage_engine.records.graph import item_bytes
from collage_engine.toolchains.runtime.builder import find_compiler
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from tests.support.toolchain_cases import default_instance

LANES = 16
"""Elements that the copy moves at once."""
RUNS = 5
"""Runs of the model in a round."""
BOUND = 0.5
"""Share of the copy's bytes per second from which a kernel is called bound by memory."""
LOSSES = ("serial", "uneven", "launch", "code", "memory", "rest")


@dataclass
class Shape:
    """What a kernel's loops say: work by loop that threads share, and outside of them."""

    shared: list[tuple[float, int]] = field(default_factory=list)
    """Work and extent of each loop that threads share."""
    serial: float = 0.0
    bytes: int = 0

    def share(self, threads: int) -> tuple[float, float]:
        """The shares of the work that are serial, and that uneven pieces add to the slowest."""
        total = self.serial + sum(work for work, _ in self.shared) or 1.0
        uneven = sum(work * (ceil(n / threads) / n - 1 / threads) for work, n in self.shared)
        return self.serial / total, uneven / total


def shape_of_kernel(function: tirx.PrimFunc) -> Shape:
    """Reads a scheduled kernel; work is counted in stores of a vector or less."""
    found = Shape()

    def visit(statement: Any, times: float, inside: bool) -> float:
        if isinstance(statement, For):
            extent = constant_value(statement.extent) or 1
            if statement.kind == ForKind.PARALLEL:
                work = visit(statement.body, times * extent, True)
                found.shared.append((work, extent))
                return 0.0
            wide = statement.kind == ForKind.VECTORIZED
            return visit(statement.body, times * (1 if wide else extent), inside)
        if isinstance(statement, tirx.BufferStore):
            return times
        if isinstance(statement, tirx.IfThenElse):
            return visit(statement.then_case, times, inside)
        if isinstance(statement, tirx.SeqStmt):
            return sum(visit(one, times, inside) for one in statement.seq)
        if isinstance(statement, s_tir.SBlockRealize):
            return visit(statement.block.body, times, inside)
        body = getattr(statement, "body", None)
        return 0.0 if body is None else visit(body, times, inside)

    found.serial = visit(function.body, 1.0, False)
    for buffer in function.params:
        found.bytes += prod(shape_of(buffer)) * item_bytes(str(buffer.dtype))
    return found


@dataclass
class Row:
    """One kernel of a model; microseconds."""

    name: str
    one: float
    """Compiled for one thread, on one."""
    alone: float
    """Compiled for all, on one."""
    all: float
    """Compiled for all, on all."""
    shape: Shape
    lost: dict[str, float] = field(default_factory=dict)


def seconds_of(body: Any, buffers: list[Any], calls: int) -> float:
    """The median of the seconds that a kernel with these loops takes."""
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
    function = tirx.PrimFunc(buffers, root).with_attr("global_symbol", "main")
    call = tvm.compile(tvm.IRModule({"main": function}), build_target())["main"]
    tensors = [tvm.runtime.tensor(np.ones(int(b.shape[0]), np.float32)) for b in buffers]
    call(*tensors)
    taken = []
    for _ in range(calls):
        begun = time.perf_counter()
        call(*tensors)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def launch_us(threads: int) -> float:
    """What a loop without work takes longer where threads share it."""
    y = workspace([16 * threads], name="y")
    with_and_without = [
        seconds_of(parallel(n, lambda i: store(y, f32(0.0), int64(i) * 16)), [y], 2000)
        for n in (threads, 1)
    ]
    return (with_and_without[0] - with_and_without[1]) * 1e6


def copy_bytes_per_us(size: int, threads: int) -> float:
    """The bytes that a copy reads and writes in a µs, ``size`` in all, by all threads."""
    each = size // 8 // threads // LANES * LANES
    x, y = (workspace([each * threads], name=name) for name in "xy")

    def vector(at: Any) -> Any:
        return vectorized(LANES, lambda lane: store(y, load(x, at + lane), at + lane))

    def task(t: Any) -> Any:
        return loop(each // LANES, lambda v: vector(int64(t) * each + v * LANES))

    return 8e-6 * each * threads / seconds_of(parallel(threads, task), [x, y], 9)


def measure(path: str, threads: int, rounds: int) -> None:
    """Prints the table of one model."""
    model = import_model(path, {})
    values = model.random_inputs(seed=1)
    names = dict(zip(model.graph.record.inputs, model.graph.record.input_names, strict=True))
    operators = tuple(range(len(model.graph.operators)))
    built: list[NativeCompiled] = []
    calls: list[Callable[[], Any]] = []
    for count in (1, threads):
        part = function_of(model, default_instance(TvmToolchain(), count), operators, "whole", True)
        built.append(NativeCompiled(part, TvmToolchain()))
        timer = built[-1].timer([values[names[i]] for i in part.inputs])
        calls.append(partial(timer, 1))
    ways = ((0, 1), (1, 1), (1, threads))
    laps: list[list[list[tuple[str, float]]]] = [[], [], []]
    wholes: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        for way, (module, used) in enumerate(ways):
            use_threads(used)
            laps[way].append(time_kernels(built[module].vm, calls[module], RUNS))
            taken = []
            for _ in range(RUNS):
                begun = time.perf_counter()
                calls[module]()
                taken.append((time.perf_counter() - begun) * 1e6)
            wholes[way].append(statistics.median(taken))
    use_threads(threads)
    rows = rows_of(built[1].lowered, laps)
    launch, size = launch_us(threads), sum(row.shape.bytes for row in rows)
    peak = copy_bytes_per_us(max(size, 1 << 20), threads)
    one, _, all_ = (statistics.median(w) for w in wholes)
    for row in rows:
        split_up(row, threads, launch, peak)
    lost = {kind: sum(row.lost[kind] for row in rows) for kind in LOSSES}
    kernels = [sum(row.one for row in rows), sum(row.all for row in rows)]
    lost["between"] = max(0.0, all_ - kernels[1]) * (1 - 1 / threads)
    trip = round_trip_ns(find_compiler())
    print(
        f"\n{path}: {one / 1000:.3f} ms at one thread, {all_ / 1000:.3f} at {threads}, efficiency "
        f"{one / threads / all_:.2f}; {len(rows)} kernels, launch {launch:.2f} µs, copy "
        f"{peak / 1000:.1f} GB/s over {size / 1e6:.0f} MB, round trip {trip or 0:.0f} ns"
    )
    print("lost, µs: " + ", ".join(f"{kind} {us:.0f}" for kind, us in lost.items()))
    rows.sort(key=lambda row: row.all - row.one / threads, reverse=True)
    for row in rows[: OPTIONS.worst]:
        extents = [n for _, n in row.shape.shared]
        said = ", ".join(f"{k} {us:.0f}" for k, us in row.lost.items() if abs(us) >= 1)
        print(
            f"  {row.one:8.1f} {row.alone:8.1f} {row.all:8.1f}  {row.one / threads / row.all:.2f}"
            f"  {row.name[:60]} {extents}: {said}"
        )


def rows_of(lowered: Any, laps: list[list[list[tuple[str, float]]]]) -> list[Row]:
    """The kernels of a model in the order of their calls, medians over the rounds."""
    kernels = {
        str(v.name_hint): f
        for v, f in lowered.functions.items()
        if not isinstance(f, relax.Function)
    }
    medians = []
    for way in laps:
        taken = [
            (name, statistics.median(lap[k][1] for lap in way))
            for k, (name, _) in enumerate(way[0])
        ]
        medians.append([(name, us) for name, us in taken if not name.startswith("vm.")])
    shapes = {name: shape_of_kernel(f) for name, f in kernels.items()}
    return [
        Row(name, one, alone, all_, shapes.get(name, Shape()))
        for (_, one), (_, alone), (name, all_) in zip(*medians, strict=True)
    ]


def split_up(row: Row, threads: int, launch: float, peak: float) -> None:
    """Says what a kernel's loss consists of, beginning with what is known best."""
    left = row.all - row.one / threads
    serial, uneven = row.shape.share(threads)
    launches = sum(n > 1 for _, n in row.shape.shared)
    parts = {
        "launch": launches * launch,
        "serial": row.alone * serial * (1 - 1 / threads),
        "uneven": row.alone * uneven,
        "code": (row.alone - row.one) / threads,
    }
    for kind, us in parts.items():
        row.lost[kind] = us if kind == "code" else max(0.0, min(us, left))
        left -= row.lost[kind]
    bound = row.shape.bytes / row.all >= BOUND * peak
    row.lost["memory"], row.lost["rest"] = (left, 0.0) if bound else (0.0, left)


def main() -> None:
    for path in OPTIONS.models:
        measure(path, OPTIONS.threads, OPTIONS.rounds)


if __name__ == "__main__":
    main()
