"""Whole models in less than float32, each toolchain alone and OpenVINO as its users run it.

    python -m tests.benchmarks.bench_precision [MODEL …]

One thread, contenders in turn in one process, process CPU time: what counts is the ratio of their
medians. Names are those of ``tests.zoo``; without any, the convolutional ones. ``openvino itself``
is its Python module with its own choice of precision (bfloat16 where the processor has it). The
error is max|y−r| / max|r| against ONNX Runtime without optimisations.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto

from collage_engine.lowering.compile import compile_function
from collage_engine.records.precision import BFLOAT16
from collage_engine.records.toolchain import Target
from collage_engine.toolchains import registry
from tests import zoo
from tests.support.toolchain_cases import error, imported, reference, whole

Call = Callable[[], Any]
Feeds = dict[str, np.ndarray]

MODELS = (
    "mobilenet_v2",
    "light_squeezenet",
    "light_resnet50",
    "se_resnet50",
    "unet_brain",
    "light_densenet121",
    "light_inception_v2",
    "light_shufflenet",
)
TOOLCHAINS = ("tvm", "onednn", "openvino")


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


def bound_session(model: ModelProto, feeds: Feeds) -> Call:
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


def openvino_itself(model: ModelProto, feeds: dict[str, np.ndarray], **more: Any) -> Any:
    """The bound call and the request it belongs to."""
    from collage_engine.toolchains.openvino.python_api import openvino as quiet

    openvino = quiet()
    settings = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", **more}
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", settings)
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        name = next(n for n in feeds if n in port.get_names())
        request.set_tensor(port, openvino.Tensor(np.ascontiguousarray(feeds[name])))
    return request.infer, lambda: [np.array(request.get_tensor(p).data) for p in compiled.outputs]


def row(name: str, seconds: float) -> None:
    """Measure a model and print a table row for every contender."""
    model = zoo.build(name)
    net = imported(model)
    feeds = net.random_inputs(0)
    calls: dict[str, Call] = {}
    errors: dict[str, float] = {}
    truth: list[np.ndarray] = []
    for toolchain in TOOLCHAINS:
        found = registry.get(toolchain)
        for instance in found.instances(Target.cpu(1), BFLOAT16):
            function = whole(net, instance)
            truth = truth or reference(model, function, feeds)
            compiled = compile_function(function)
            inputs = [feeds[net.graph.nodes[index].name] for index in function.inputs]
            errors[instance.id] = max(map(error, compiled.run(inputs), truth))
            timer = compiled.timer(inputs)
            calls[instance.id] = functools.partial(timer, 1)
    calls["openvino itself"], given = openvino_itself(model, feeds)
    calls["openvino itself"]()
    errors["openvino itself"] = max(map(error, given(), truth))
    calls["onnxruntime"] = bound_session(model, feeds)
    times = interleaved(calls, seconds=seconds, rounds=21)
    full = [n for n in times if "bf16" not in n and n != "openvino itself"]
    best = min(times[n] for n in full)
    for label, taken in sorted(times.items(), key=lambda item: item[1]):
        wrong = errors.get(label)
        print(
            f"{name:20} {label:26} {taken * 1e3:9.3f} ms  {best / taken:6.2f}x"
            f"  error {'' if wrong is None else format(wrong, '.1e')}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each contender")
    options = parser.parse_args()
    for name in options.models:
        row(name, options.seconds)


if __name__ == "__main__":
    main()
