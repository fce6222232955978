"""The external toolchains against each other and against ONNX Runtime by itself, at one thread.

    python -m tests.benchmarks.bench_toolchains [overhead|kernels|models] …

Contenders take turns in one process and are timed in process CPU time, which other work on the
machine disturbs least; what counts is the ratio of their medians. Kernels are operators of common
models (``bench_tvm_ops``), row-major at the border as every candidate is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto

from collage_engine.toolchains import registry
from collage_engine.toolchains.base import Function
from tests import zoo
from tests.support.toolchain_cases import Net, default_instance, imported, tensors, whole

Call = Callable[[], Any]


def conv(
    channels: int, outputs: int, size: int, kernel: int, stride: int = 1, groups: int = 1
) -> ModelProto:
    net = Net()
    x = net.input(1, channels, size, size)
    w = net.randn(outputs, channels // groups, kernel, kernel, scale=0.05)
    pads = [kernel // 2] * 4
    y = net.add("Conv", x, w, net.randn(outputs), pads=pads, strides=[stride] * 2, group=groups)
    return net.model(net.add("Relu", y))


def dense(rows: int, inputs: int, outputs: int, gelu: bool = False) -> ModelProto:
    net = Net()
    y = net.add("MatMul", net.input(rows, inputs), net.randn(inputs, outputs, scale=0.05))
    y = net.add("Add", y, net.randn(outputs))
    return net.model(written_gelu(net, y) if gelu else y)


def written_gelu(net: Net, x: str) -> str:
    gate = net.add("Add", net.add("Erf", net.add("Div", x, net.scalar(2**0.5))), net.scalar(1))
    return str(net.add("Mul", net.add("Mul", x, gate), net.scalar(0.5)))


def unary(op: str, *shape: int, **attributes: Any) -> ModelProto:
    net = Net()
    return net.model(net.add(op, net.input(*shape), **attributes))


def gelu(*shape: int) -> ModelProto:
    net = Net()
    return net.model(written_gelu(net, net.input(*shape)))


def layer_norm(rows: int, width: int) -> ModelProto:
    net = Net()
    x = net.input(rows, width)
    return net.model(net.add("LayerNormalization", x, net.randn(width), net.randn(width)))


def add_relu(*shape: int) -> ModelProto:
    net = Net()
    return net.model(net.add("Relu", net.add("Add", net.input(*shape), net.input(*shape))))


def attention(heads: int, length: int, width: int) -> ModelProto:
    net = Net()
    q, k, v = (net.input(1, heads, length, width) for _ in range(3))
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net.add("Softmax", net.add("Div", scores, net.scalar(width**0.5)), axis=-1)
    return net.model(net.add("MatMul", scores, v))


KERNELS: dict[str, Callable[[], ModelProto]] = {
    "conv3x3 64-64 56²": lambda: conv(64, 64, 56, 3),
    "conv7x7/2 3-64 224²": lambda: conv(3, 64, 224, 7, 2),
    "conv3x3 256-256 14²": lambda: conv(256, 256, 14, 3),
    "conv3x3 512-512 7²": lambda: conv(512, 512, 7, 3),
    "conv1x1 256-64 56²": lambda: conv(256, 64, 56, 1),
    "conv1x1 1024-256 14²": lambda: conv(1024, 256, 14, 1),
    "conv1x1 512-2048 7²": lambda: conv(512, 2048, 7, 1),
    "depthwise 96 112²": lambda: conv(96, 96, 112, 3, 1, 96),
    "depthwise 576 14²": lambda: conv(576, 576, 14, 3, 1, 576),
    "matmul 128x768x768+bias": lambda: dense(128, 768, 768),
    "matmul 128x768x3072+gelu": lambda: dense(128, 768, 3072, gelu=True),
    "gemv 1x2048x1000": lambda: dense(1, 2048, 1000),
    "attention 12x128x64": lambda: attention(12, 128, 64),
    "layer norm 128x768": lambda: layer_norm(128, 768),
    "gelu 128x3072": lambda: gelu(128, 3072),
    "softmax 1536x128": lambda: unary("Softmax", 1536, 128, axis=-1),
    "max pool 3x3/2 64 112²": lambda: unary(
        "MaxPool", 1, 64, 112, 112, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
    ),
    "add+relu 256 56²": lambda: add_relu(1, 256, 56, 56),
    "relu 16": lambda: unary("Relu", 1, 16),
}


def interleaved(calls: dict[str, Call], seconds: float = 1.0, rounds: int = 25) -> dict[str, float]:
    """Median seconds of process CPU time per call, each round every contender in turn."""
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call()
        start = time.process_time()
        call()
        once = max(time.process_time() - start, 1e-6)
        repeats[name] = max(1, int(seconds / rounds / len(calls) / once))
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call, n = calls[name], repeats[name]
            start = time.process_time()
            for _ in range(n):
                call()
            times[name].append((time.process_time() - start) / n)
    return {name: statistics.median(found) for name, found in times.items()}


def compiled(toolchain: str, model: ModelProto) -> tuple[Call, Function, dict[str, np.ndarray]]:
    net = imported(model)
    found = registry.get(toolchain)
    function = whole(net, default_instance(found))
    module = found.compile(function)
    feeds = net.random_inputs(0)
    arguments, results = tensors(function, feeds)
    call = module[function.symbol]
    return lambda: (call(*arguments), results), function, feeds


def bound_session(model: ModelProto, feeds: dict[str, np.ndarray]) -> Call:
    """ONNX Runtime by itself: its Python module, everything bound beforehand."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    return lambda: session.run_with_iobinding(binding)


def overhead(names: tuple[str, ...] = ("squeezenet", "resnet50")) -> None:
    """What running ONNX Runtime through our runtime costs over its own Python binding."""
    print(f"{'model':24} {'ours ms':>10} {'binding ms':>11} {'ratio':>7}")
    for name in names:
        model = zoo.light(name)
        call, _, feeds = compiled("onnxruntime", model)
        both = {"ours": call, "binding": bound_session(model, feeds)}
        found = interleaved(both, seconds=4.0, rounds=31)
        ours, binding = found["ours"] * 1e3, found["binding"] * 1e3
        print(f"{name:24} {ours:10.3f} {binding:11.3f} {ours / binding:7.3f}")


def kernels(only: str = "") -> dict[str, dict[str, float]]:
    """oneDNN against ONNX Runtime, kernel by kernel."""
    print(f"{'kernel':26} {'onednn µs':>10} {'ort µs':>10} {'onednn/ort':>11}")
    table = {}
    for name, make in KERNELS.items():
        if only not in name:
            continue
        model = make()
        found = interleaved({t: compiled(t, model)[0] for t in ("onednn", "onnxruntime")})
        table[name] = found
        dnn, ort = found["onednn"] * 1e6, found["onnxruntime"] * 1e6
        print(f"{name:26} {dnn:10.1f} {ort:10.1f} {dnn / ort:11.2f}", flush=True)
    return table


def models(
    names: tuple[str, ...] = ("squeezenet", "shufflenet", "inception_v2", "resnet50"),
) -> None:
    """Whole models on one toolchain each."""
    print(f"{'model':24} {'onednn ms':>10} {'ort ms':>10} {'onednn/ort':>11}")
    for name in names:
        model = zoo.light(name)
        calls = {t: compiled(t, model)[0] for t in ("onednn", "onnxruntime")}
        found = interleaved(calls, seconds=4.0, rounds=15)
        dnn, ort = found["onednn"] * 1e3, found["onnxruntime"] * 1e3
        print(f"{name:24} {dnn:10.2f} {ort:10.2f} {dnn / ort:11.2f}", flush=True)


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    tables: dict[str, Callable[[], object]] = {
        "overhead": overhead,
        "kernels": kernels,
        "models": models,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(tables))
    for name in parser.parse_args().tables or tables:
        tables[name]()


if __name__ == "__main__":
    main()
