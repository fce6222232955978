"""Throughput of an artifact beside ONNX Runtime with several sessions and OpenVINO's hint.

    collage place m.onnx -o out --objective throughput
    python -m tests.benchmarks.throughput m.onnx out [--seconds 3] [--turns 3]

Every contender has a process of its own, and they take turns. ONNX Runtime is tried with every way
of sharing the processors among sessions; OpenVINO with its performance hint THROUGHPUT, which
chooses streams itself, and as many requests at once as it says are best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.loader.streams import Pool
from collage_engine.deployment.throughput import ways
from collage_engine.machine.device import physical_cores


def per_second(pool: Pool, seconds: float) -> float:
    """Calls of all instances of a pool that end in a second."""
    together = threading.Barrier(pool.streams)

    def work(call: Callable[[], Any]) -> float:
        call()
        together.wait()
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            call()
            count += 1
        return count / (time.perf_counter() - begin)

    return sum(future.result() for future in [pool.apply(work) for _ in range(pool.streams)])


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

    with Pool(make, streams, threads) as pool:
        return per_second(pool, seconds)


def openvino_hint(model: str, inputs: dict[str, np.ndarray], seconds: float) -> float:
    """Runs per second of OpenVINO's asynchronous queue under its throughput hint."""
    import openvino as ov

    core = ov.Core()
    read = core.read_model(model)
    read.reshape({name: list(array.shape) for name, array in inputs.items()})
    compiled = core.compile_model(read, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
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


def in_child(name: str, model: str, artifact: str, seconds: float) -> float:
    """Runs per second of a peer, in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.throughput", model, artifact]
    done = subprocess.run(
        [*command, "--only", name, "--seconds", str(seconds)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Compare, and print one line of JSON for each contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("artifact")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", help="a peer, as this program calls itself")
    options = parser.parse_args()
    inputs = inputs_of(Path(options.artifact))
    if options.only == "openvino":
        print(openvino_hint(options.model, inputs, options.seconds))
        return
    if options.only:
        streams, threads = map(int, options.only.removeprefix("onnxruntime ").split("x"))
        print(onnxruntime_sessions(options.model, inputs, streams, threads, options.seconds))
        return
    peers = [f"onnxruntime {n}x{t}" for n, t in ways(physical_cores())] + ["openvino"]
    rates: dict[str, list[float]] = {name: [] for name in ["collage", *peers]}
    for _ in range(options.turns):
        found = run_artifact(Path(options.artifact), benchmark=True)
        rates["collage"].append(found["runs_per_s"])
        for name in peers:
            rates[name].append(in_child(name, options.model, options.artifact, options.seconds))
    ours = statistics.median(rates["collage"])
    for name, every in rates.items():
        median = statistics.median(every)
        print(json.dumps({"who": name, "runs_per_s": median, "ours": ours / median, "all": every}))


if __name__ == "__main__":
    main()
