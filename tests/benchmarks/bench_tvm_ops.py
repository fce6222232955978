"""The native TVM toolchain against ONNX Runtime, operator by operator and on whole models.

    python -m tests.benchmarks.bench_tvm_ops [--threads 1] [--rounds 15] [--json] [NAME …]

Both take turns in one process; what counts is the ratio of their medians. At one thread they are
timed in process CPU time, which other work on the machine disturbs least. The bars are 1.4 for
each operator of the list below, 1.15 for light_resnet50, and 1.4 for light_squeezenet and
MobileNetV2. Ends with 1 when one is missed.
"""

# ruff: noqa: E402 — TVM reads its thread settings when it loads

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ARGUMENTS = argparse.ArgumentParser(description=__doc__.splitlines()[0])
ARGUMENTS.add_argument("names", nargs="*", help="cases to run; all by default")
ARGUMENTS.add_argument("--threads", type=int, default=1)
ARGUMENTS.add_argument("--rounds", type=int, default=15)
ARGUMENTS.add_argument("--json", action="store_true")
OPTIONS = ARGUMENTS.parse_args() if __name__ == "__main__" else ARGUMENTS.parse_args([])
os.environ.setdefault("TVM_NUM_THREADS", str(OPTIONS.threads))
os.environ.setdefault("TVM_BIND_THREADS", "0")

import numpy as np
import onnxruntime
from onnx import ModelProto

from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of
from collage_engine.model.importer import import_onnx
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from tests import zoo
from tests.support.toolchain_cases import Net, default_instance

LEAST_SECONDS = 0.02
"""One sample lasts at least this long."""


def conv(
    data: tuple[int, ...], channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> ModelProto:
    """Convolution, bias and ReLU on a square image, padded to keep its size."""
    net = Net()
    x = net.input(*data)
    inside = data[1] // groups
    weight = net.randn(channels, inside, kernel, kernel, scale=(inside * kernel**2) ** -0.5)
    y = net.add(
        "Conv",
        x,
        weight,
        net.randn(channels),
        strides=[stride] * 2,
        pads=[kernel // 2] * 4,
        group=groups,
    )
    return net.model(net.add("Relu", y))


def product(rows: int, depth: int, columns: int, gelu: bool = False) -> ModelProto:
    net = Net(opset=20)
    x = net.input(rows, depth)
    y = net.add("MatMul", x, net.randn(depth, columns, scale=depth**-0.5))
    y = net.add("Add", y, net.randn(columns))
    return net.model(net.add("Gelu", y) if gelu else y)


def attention() -> ModelProto:
    net = Net()
    q, k, v = net.input(12, 128, 64), net.input(12, 64, 128), net.input(12, 128, 64)
    scores = net.add("Mul", net.add("MatMul", q, k), net.scalar(0.125))
    return net.model(net.add("MatMul", net.add("Softmax", scores, axis=-1), v))


def one(op: str, *shapes: tuple[int, ...], opset: int = 20, **attributes: Any) -> ModelProto:
    net = Net(opset=opset)
    return net.model(net.add(op, *(net.input(*s) for s in shapes), **attributes))


def layer_norm() -> ModelProto:
    net = Net()
    x = net.input(128, 768)
    return net.model(net.add("LayerNormalization", x, net.randn(768), net.randn(768), axis=-1))


def add_relu() -> ModelProto:
    net = Net()
    return net.model(
        net.add("Relu", net.add("Add", net.input(256, 56, 56), net.input(256, 56, 56)))
    )


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], ModelProto]
    bar: float | None = 1.4
    """Highest ratio to ONNX Runtime; None: shown only."""


CASES = (
    Case("conv3x3 64 56", lambda: conv((1, 64, 56, 56), 64, 3)),
    Case("conv7x7s2 3-64 224", lambda: conv((1, 3, 224, 224), 64, 7, 2)),
    Case("conv3x3 256 14", lambda: conv((1, 256, 14, 14), 256, 3)),
    Case("conv3x3 512 7", lambda: conv((1, 512, 7, 7), 512, 3)),
    Case("conv1x1 256-64 56", lambda: conv((1, 256, 56, 56), 64, 1)),
    Case("conv1x1 1024-256 14", lambda: conv((1, 1024, 14, 14), 256, 1)),
    Case("conv1x1 512-2048 7", lambda: conv((1, 512, 7, 7), 2048, 1)),
    Case("depthwise 96 112", lambda: conv((1, 96, 112, 112), 96, 3, groups=96)),
    Case("depthwise 576 14", lambda: conv((1, 576, 14, 14), 576, 3, groups=576)),
    Case("matmul 128x768x768", lambda: product(128, 768, 768)),
    Case("matmul gelu 128x768x3072", lambda: product(128, 768, 3072, gelu=True)),
    Case("fc 1x2048x1000", lambda: product(1, 2048, 1000)),
    Case("attention 12x128x64", attention),
    Case("layernorm 128x768", layer_norm),
    Case("gelu 128x3072", lambda: one("Gelu", (128, 3072))),
    Case(
        "maxpool3x3s2 64 112",
        lambda: one(
            "MaxPool", (1, 64, 112, 112), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
        ),
    ),
    Case("add relu 256 56", add_relu),
    Case("relu 1x16", lambda: one("Relu", (1, 16))),
    Case("conv3x3s2 128 56", lambda: conv((1, 128, 56, 56), 128, 3, 2), None),
    Case("conv1x1 512-1000 13", lambda: conv((1, 512, 13, 13), 1000, 1), None),
    Case("grouped 128/32 28", lambda: conv((1, 128, 28, 28), 128, 3, groups=32), None),
    Case("depthwise 960 7", lambda: conv((1, 960, 7, 7), 960, 3, groups=960), None),
    Case("depthwise s2 96 112", lambda: conv((1, 96, 112, 112), 96, 3, 2, 96), None),
    Case("matmul of inputs", lambda: one("MatMul", (128, 768), (768, 768)), None),
    Case("softmax 12x128x128", lambda: one("Softmax", (12, 128, 128), axis=-1), None),
    Case("global average 2048 7", lambda: one("GlobalAveragePool", (1, 2048, 7, 7)), None),
    Case("transpose heads", lambda: one("Transpose", (1, 128, 12, 64), perm=[0, 2, 1, 3]), None),
    Case("transpose squares", lambda: one("Transpose", (12, 128, 64), perm=[0, 2, 1]), None),
    Case("sigmoid 128x3072", lambda: one("Sigmoid", (128, 3072)), None),
    Case("light_resnet50", lambda: zoo.build("light_resnet50"), 1.15),
    Case("light_squeezenet", lambda: zoo.build("light_squeezenet")),
    Case("mobilenet_v2", lambda: zoo.build("mobilenet_v2")),
    Case("light_inception_v1", lambda: zoo.build("light_inception_v1"), None),
    Case("light_densenet121", lambda: zoo.build("light_densenet121"), None),
    Case("light_shufflenet", lambda: zoo.build("light_shufflenet"), None),
    Case("bert", lambda: zoo.build("bert"), None),
    Case("gpt2", lambda: zoo.build("gpt2"), None),
)


def measure(case: Case, threads: int, rounds: int) -> dict[str, Any]:
    """Medians of both in microseconds, their ratio, the error, and what compiling took."""
    model = import_onnx(case.build())
    values = model.random_inputs(seed=1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.onnx.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    instance = default_instance(TvmToolchain(), threads)
    part = function_of(model, instance, tuple(range(len(model.graph.operators))), "whole")
    begun = time.perf_counter()
    compiled = compile_function(part)
    compiling = time.perf_counter() - begun
    names = dict(zip(model.graph.record.inputs, model.graph.record.input_names, strict=True))
    inputs = [values[names[i]] for i in part.inputs]
    got = dict(zip(part.outputs, compiled.run(inputs), strict=True))
    error = 0.0
    for index, want in zip(model.graph.record.outputs, session.run(None, values), strict=True):
        scale = max(float(np.abs(want).max()), 1e-30)
        error = max(error, float(np.abs(got[index].astype(np.float64) - want).max()) / scale)
    run = compiled.timer(inputs)

    def other(n: int) -> None:
        for _ in range(n):
            session.run(None, values)

    clock = time.process_time if threads == 1 else time.perf_counter
    samples: tuple[list[float], list[float]] = ([], [])
    calls = []
    works: tuple[Callable[[int], object], ...] = (run, other)
    for work in works:
        work(3)
        begun = clock()
        work(3)
        calls.append(max(1, int(3 * LEAST_SECONDS / max(clock() - begun, 1e-7))))
    for _ in range(rounds):
        for work, count, times in zip(works, calls, samples, strict=True):
            begun = clock()
            work(count)
            times.append((clock() - begun) / count)
    ours, theirs = (statistics.median(times) * 1e6 for times in samples)
    compiled.close()
    return {
        "case": case.name,
        "tvm_us": ours,
        "onnxruntime_us": theirs,
        "ratio": ours / theirs,
        "bar": case.bar,
        "error": error,
        "compile_s": compiling,
    }


def main() -> int:
    chosen = [c for c in CASES if not OPTIONS.names or c.name in OPTIONS.names]
    rows = []
    if not OPTIONS.json:
        print("| case | tvm us | onnxruntime us | ratio | bar | max rel. error | compile s |")
        print("|---|---|---|---|---|---|---|")
    for case in chosen:
        row = measure(case, OPTIONS.threads, OPTIONS.rounds)
        rows.append(row)
        if not OPTIONS.json:
            print(
                f"| {row['case']} | {row['tvm_us']:.1f} | {row['onnxruntime_us']:.1f} "
                f"| {row['ratio']:.2f} | {row['bar'] or ''} | {row['error']:.0e} "
                f"| {row['compile_s']:.2f} |",
                flush=True,
            )
    if OPTIONS.json:
        print(json.dumps(rows, indent=1))
    missed = [r["case"] for r in rows if r["bar"] is not None and r["ratio"] > r["bar"]]
    if missed:
        print("missed:", ", ".join(missed), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
