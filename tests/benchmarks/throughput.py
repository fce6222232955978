"""Throughput of artifacts beside ONNX Runtime with several sessions and OpenVINO's hint.

    python -m tests.benchmarks.throughput FOLDER [--budget 120] [--seconds 3] [--turns 7] [MODEL …]

A model is a name of ``tests.zoo`` or an .onnx file; without one, those of ``MODELS`` are done. Each
is placed with ``collage place --objective throughput``, from an empty store of measurements, on all
processors that this process may use. Then its artifact and the others take turns in random order,
each in a process of its own: ONNX Runtime with every way of sharing the processors among sessions,
and OpenVINO with its performance hint THROUGHPUT, which chooses streams itself, with as many
requests at once as it says are best.

It takes the budget for each model, and some ten seconds for each contender and turn: 25 minutes
with the defaults on two processors. What is in FOLDER already is not done again, so a command that
was interrupted goes on when it is given again.

The table says for each model the runs per second of every contender (the median of its turns), and
ours over the best of the others: the median of the ratios of the turns with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.loader.run_artifact import Pool
from collage_engine.artifact.manifest import read_manifest
from collage_engine.deployment.throughput import ways
from collage_engine.machine.device import physical_cores
from tests.benchmarks.peers_stats import paired_ratio
from tests.benchmarks.place import model_file, placed, print_head, print_row
from tests.support.command import ROOT

MODELS = ("mobilenet_v2", "light_resnet50", "light_densenet121", "bert_small")
"""Four models of published size, of tens of milliseconds and less a run."""
OURS = "collage"


def per_second(pool: Pool, seconds: float) -> float:
    """Calls of all instances of a pool that end in a second."""

    def work(call: Callable[[], Any]) -> float:
        call()
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            call()
            count += 1
        return count / (time.perf_counter() - begin)

    return sum(pool.at_once(work))


def inputs_of(artifact: Path) -> dict[str, np.ndarray]:
    """The sample inputs of an artifact for one shape."""
    with np.load(artifact / "sample_input.npz") as arrays:
        return dict(arrays)


def onnxruntime_sessions(
    model: str, inputs: dict[str, np.ndarray], streams: int, threads: int, seconds: float
) -> float:
    """Runs per second of several sessions, each with threads of its own that do not spin."""
    import onnxruntime as ort

    def make(_number: int) -> Callable[[], Any]:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, inputs)

    with closing(Pool(make, streams, threads)) as pool:
        return per_second(pool, seconds)


def openvino_hint(model: str, inputs: dict[str, np.ndarray], seconds: float) -> float:
    """Runs per second of OpenVINO's asynchronous queue under its throughput hint, in float32.

    Without the hint for the precision it computes in bfloat16 where the processor can.
    """
    import openvino as ov

    core = ov.Core()
    read = core.read_model(model)
    read.reshape({name: list(array.shape) for name, array in inputs.items()})
    hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(read, "CPU", hints)
    queue = ov.AsyncInferQueue(compiled)
    for _ in range(len(queue)):
        queue.start_async(inputs)
    queue.wait_all()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        queue.start_async(inputs)
        count += 1
    queue.wait_all()
    return count / (time.perf_counter() - begin)


def in_child(name: str, model: Path, artifact: Path, seconds: float) -> float:
    """Runs per second of a peer, in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.throughput", str(artifact), str(model)]
    done = subprocess.run(
        [*command, "--only", name, "--seconds", str(seconds)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if done.returncode:
        raise SystemExit(f"{name} on {model}: {done.stderr[-2000:]}")
    return float(done.stdout.splitlines()[-1])


def compared(model: Path, artifact: Path, seconds: float, turns: int) -> dict[str, list[float]]:
    """Runs per second of every contender in every turn, measured now or before."""
    log = artifact.with_name(f"{artifact.name}-turns.json")
    peers = [f"onnxruntime {n}x{t}" for n, t in ways(physical_cores())] + ["openvino"]
    rates: dict[str, list[float]] = {name: [] for name in [OURS, *peers]}
    if log.exists():
        rates = json.loads(log.read_text())
    for turn in range(len(rates[OURS]), turns):
        order = list(rates)
        random.Random(turn).shuffle(order)
        for name in order:
            if name == OURS:
                found = run_artifact(artifact, benchmark=True)["runs_per_s"]
            else:
                found = in_child(name, model, artifact, seconds)
            rates[name].append(found)
        log.write_text(json.dumps(rates))
    return rates


def row(name: str, artifact: Path, rates: dict[str, list[float]]) -> list[str]:
    """The line of the table of a model."""
    middle = {who: statistics.median(found) for who, found in rates.items()}
    best = max((who for who in rates if who != OURS), key=lambda who: middle[who])
    ratio = paired_ratio(rates[OURS], rates[best])
    manifest = read_manifest(artifact)
    parts = manifest["placement"]["partitions"]
    toolchains = ", ".join(sorted({part["toolchain"] for part in parts}))
    shown = "too few turns"
    if ratio is not None:
        shown = f"{ratio.middle:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return [
        name,
        f"{middle[OURS]:.4g} ({manifest.get('streams', 1)}x{manifest['threads']}, {toolchains})",
        ", ".join(
            f"{who.removeprefix('onnxruntime ')}: {middle[who]:.4g}"
            for who in rates
            if who.startswith("onnxruntime")
        ),
        f"{middle['openvino']:.4g}",
        f"{shown} of {best}",
    ]


def main() -> None:
    """Place and compare, and print a line for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where models, artifacts and results are kept")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of each placing")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", help="a peer, as this program calls itself")
    options = parser.parse_intermixed_args()
    if options.only:
        (model,) = options.models
        inputs = inputs_of(options.folder)
        if options.only == "openvino":
            print(openvino_hint(model, inputs, options.seconds))
        else:
            streams, threads = map(int, options.only.removeprefix("onnxruntime ").split("x"))
            print(onnxruntime_sessions(model, inputs, streams, threads, options.seconds))
        return
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print_head("model|ours|ONNX Runtime, sessions x threads|OpenVINO|ours / best other")
    for name in options.models:
        model = model_file(name, folder)
        artifact = folder / f"{model.stem}-out"
        placed(model, artifact, f"--objective throughput --budget {options.budget:g}s")
        rates = compared(model, artifact, options.seconds, options.turns)
        print_row(row(model.stem, artifact, rates))


if __name__ == "__main__":
    main()
