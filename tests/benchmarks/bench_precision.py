"""Whole models in less than float32, each toolchain alone and OpenVINO as its users run it.

    python -m tests.benchmarks.bench_precision [MODEL …]
    python -m tests.benchmarks.bench_precision FILE.onnx --tolerance 0.01 --inputs FILE.npz …

One thread, contenders in turn in one process, process CPU time: what counts is the ratio of their
medians. Names are those of ``tests.zoo``; without any, the convolutional ones. ``openvino itself``
is its Python module with its own choice of precision (bfloat16 where the processor has it). The
error is max|y−r| / max|r| against ONNX Runtime without optimisations, the largest over the inputs.

With a tolerance, the products that may be rounded are chosen on all inputs, as a run's stage
``precision`` does, and the whole model is built with them: ``mixed``. ``--fresh FILE.npz …`` names
inputs that the choice has not seen.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.rounding_emulation import RoundingEmulation
from collage_engine.model.importer import ImportedModel
from collage_engine.records.precision import BFLOAT16, PRODUCTS, careful, is_reduced
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.records.work import work_of_operators
from collage_engine.run.stages.precision import BOUND, MOST_BUILDS
from collage_engine.toolchains import registry
from collage_engine.toolchains.capabilities import rounds
from collage_engine.trials.product_choice import Products, choose_products
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


class Study:
    """One model with its inputs: builds contenders, and knows their errors."""

    def __init__(self, model: ModelProto, samples: Sequence[Feeds], fresh: Sequence[Feeds]) -> None:
        self.model, self.net = model, imported(model)
        self.samples = list(samples) or [self.net.random_inputs(0)]
        self.fresh = list(fresh)
        self.calls: dict[str, Call] = {}
        self.errors: dict[str, str] = {}

    def truth(self, feeds: Feeds, instance: ToolchainInstance) -> list[np.ndarray]:
        """Return the true outputs."""
        return reference(self.model, whole(self.net, instance), feeds)

    def add(self, name: str, instance: ToolchainInstance) -> float:
        """Build a contender under a name; return its error on the samples."""
        function = whole(self.net, instance)
        compiled = compile_function(function)

        def inputs(feeds: Feeds) -> list[np.ndarray]:
            return [feeds[self.net.graph.nodes[index].name] for index in function.inputs]

        def worst(many: Sequence[Feeds]) -> float:
            return max(
                max(map(error, compiled.run(inputs(one)), self.truth(one, instance)))
                for one in many
            )

        found = worst(self.samples)
        self.errors[name] = f"{found:.1e}"
        if self.fresh:
            self.errors[name] += f", fresh {worst(self.fresh):.1e}"
        self.calls[name] = functools.partial(compiled.timer(inputs(self.samples[0])), 1)
        return found

    def add_mixed(self, reduced: ToolchainInstance, tolerance: float) -> None:
        """Choose products within a tolerance, and build the whole model with them rounded."""
        net, tool = self.net, registry.get(reduced.toolchain)
        began = time.process_time()
        emulation = RoundingEmulation(net, BFLOAT16, threads=1)
        truths = [self.truth(one, reduced) for one in self.samples]

        def share(products: Products, at: Sequence[int]) -> float:
            pairs = ((self.samples[k], truths[k]) for k in at)
            return max(max(emulation.errors(products, x, r)) for x, r in pairs) / tolerance

        every = range(len(self.samples))
        numbers = frozenset(product.number for product in emulation.products)
        worst = max(every, key=lambda k: share(numbers, [k]))
        alone = {number: share(frozenset({number}), [worst]) for number in numbers}
        work = work_of_operators(net.graph.record)
        values = {
            product.number: work[product.number].operations
            * rounds(tool, net.graph, product.index, reduced)
            for product in emulation.products
        }
        emulated_s, bound = time.process_time() - began, BOUND
        for build in range(1, MOST_BUILDS + 1):
            choice = choose_products(values, alone, lambda chosen: share(chosen, every), bound)
            if not choice.products:
                break
            found = self.add("mixed", careful(reduced, left_full(net, choice.products)))
            operations = choice.value / sum(work[number].operations for number in numbers)
            print(
                f"  {reduced.id} mixed, build {build}: {len(choice.products)} of {len(numbers)} "
                f"products, {operations:.2f} of their operations, emulated error "
                f"{choice.error * tolerance:.2e}, real {found:.2e}; errors of single products "
                f"took {emulated_s:.1f} s"
            )
            name = f"{reduced.id} mixed"
            self.calls[name], self.errors[name] = self.calls.pop("mixed"), self.errors.pop("mixed")
            if found <= tolerance:
                return
            del self.calls[name], self.errors[name]
            bound = BOUND * choice.error * tolerance / found


def left_full(net: ImportedModel, rounded: Products) -> list[int]:
    """Return the places of the products that stay in float32."""
    return [
        place
        for place, (index, number) in enumerate(sorted(net.graph.operator_number.items()))
        if net.graph.nodes[index].op in PRODUCTS and number not in rounded
    ]


def row(name: str, seconds: float, options: argparse.Namespace) -> None:
    """Measure a model and print a table row for every contender."""
    model = onnx.load(name) if name.endswith(".onnx") else zoo.build(name)
    study = Study(
        model,
        [dict(np.load(path)) for path in options.inputs],
        [dict(np.load(path)) for path in options.fresh],
    )
    for toolchain in TOOLCHAINS:
        found = registry.get(toolchain)
        for instance in found.instances(Target.cpu(1), BFLOAT16):
            wrong = study.add(instance.id, instance)
            mixes = found.about.mixes_precision and is_reduced(instance)
            if mixes and options.tolerance is not None and wrong > options.tolerance:
                study.add_mixed(instance, options.tolerance)
    calls, errors, feeds = study.calls, study.errors, study.samples[0]
    calls["openvino itself"], given = openvino_itself(model, feeds)
    calls["openvino itself"]()
    truth = study.truth(feeds, ToolchainInstance(toolchain="openvino"))
    errors["openvino itself"] = f"{max(map(error, given(), truth)):.1e}"
    calls["onnxruntime"] = bound_session(model, feeds)
    times = interleaved(calls, seconds=seconds, rounds=21)
    full = [n for n in times if "bf16" not in n and n != "openvino itself"]
    name = name.rpartition("/")[2].removesuffix(".onnx")
    best = min(times[n] for n in full)
    for label, taken in sorted(times.items(), key=lambda item: item[1]):
        print(
            f"{name:20} {label:30} {taken * 1e3:9.3f} ms  {best / taken:6.2f}x"
            f"  error {errors.get(label, '')}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each contender")
    parser.add_argument("--tolerance", type=float, help="of what is built with some rounded")
    parser.add_argument("--inputs", nargs="*", default=[], metavar="FILE.npz")
    parser.add_argument("--fresh", nargs="*", default=[], metavar="FILE.npz")
    options = parser.parse_args()
    for name in options.models:
        row(name, options.seconds, options)


if __name__ == "__main__":
    main()
