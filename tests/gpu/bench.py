"""Collage against what an NVIDIA user has without it: one model and precision a call.

``python -m tests.gpu.bench MODEL PRECISION [--out DIR] [--budget TIME] [--table]``

MODEL is one of ``tests.gpu.models``, PRECISION float32 or float16. Each call places the model
with all toolchains that are here, runs the artifact, and times torch eager and ``torch.compile``
(max-autotune), in interleaved rounds. All three replay CUDA graphs: the artifact and max-autotune
make their own, eager mode is captured here where it can be. DIR keeps the measurement store, the
compiled kernels and a row per model, so that a benchmark can be taken up where the last call ended;
``--table`` prints the rows as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
ROUNDS, CALLS = 50, 20
EAGER = "torch eager"


def place(model: Path, out: Path, store: Path, budget: str) -> dict[str, Any]:
    """One run of ``collage place --target cuda``; its document."""
    done = subprocess.run(
        [sys.executable, "-m", "collage_engine", "place", str(model), "-o", str(out),
         "--target", "cuda", "--budget", budget, "--json"],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={
            "COLLAGE_BUILD_DIR": str(store.with_name("build")), **os.environ,
            "COLLAGE_CACHE_DIR": str(store),
        },
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{model.stem}: collage place ended with {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def artifact_call(out: Path) -> Callable[[], Any]:
    """The exported module on its sample, as a call that only enqueues."""
    sys.path.insert(0, str(out / "loader"))
    import run_artifact

    loaded = run_artifact.load(out)
    kinds = {a["name"]: a["dtype"] for a in loaded.manifest["inputs"]}
    tensors = loaded.bind(run_artifact.read_npz(out / "sample_input.npz", kinds))
    return lambda: loaded.main(*tensors)


def torch_calls(model: Path, sample: Path) -> dict[str, Callable[[], Any]]:
    """Eager and compiled, on the artifact's sample."""
    import torch
    from peers_torch import Program

    program = Program(str(model), None)
    program.known = {
        name: value.cuda() if isinstance(value, torch.Tensor) else value
        for name, value in program.known.items()
    }
    arrays = np.load(sample)
    inputs = {name: torch.from_numpy(arrays[name]).cuda() for name in program.inputs}

    def eager() -> Any:
        with torch.inference_mode():
            return program(inputs)

    optimized = torch.compile(program.__call__, mode="max-autotune", dynamic=False)

    def compiled() -> Any:
        with torch.inference_mode():
            return optimized(inputs)

    return {EAGER: eager, "torch.compile max-autotune": compiled}


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call replayed from a CUDA graph; itself where it cannot be captured."""
    import torch

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except Exception as error:
        torch.cuda.synchronize()
        print(f"not captured: {str(error).splitlines()[0]}", file=sys.stderr)
        return call
    return graph.replay


def time_all(calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Microseconds of a call, per round, in turns."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(CALLS):
            call()
    torch.cuda.synchronize()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin.record()
            for _ in range(CALLS):
                call()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end) * 1000 / CALLS)
    return found


def versions() -> dict[str, str]:
    import torch

    from collage_engine.machine.cuda import cuda_probe

    device = cuda_probe().devices[0]
    return {
        "device": device.record().description,
        "driver speaks CUDA": f"{device.driver // 1000}.{device.driver % 1000 // 10}",
        "torch": torch.__version__,
    }


def bench(name: str, precision: str, folder: Path, budget: str) -> dict[str, Any]:
    import onnx

    from tests.gpu.models import build

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / f"{name}-{precision}.onnx"
    if not model.exists():
        onnx.save(build(name, precision), str(model))
    out = folder / f"{name}-{precision}"
    document = place(model, out, (folder / "store").resolve(), budget)
    calls = {"Collage": artifact_call(out), **torch_calls(model, out / "sample_input.npz")}
    calls[EAGER] = captured(calls[EAGER])  # the others replay graphs of their own
    times = time_all(calls)
    return {
        "model": name,
        "precision": precision,
        "versions": versions(),
        "winner": document["winner"],
        "toolchains": sorted({p["toolchain"] for p in document["placement"]["partitions"]}),
        "partitions": len(document["placement"]["partitions"]),
        "estimated_us": document["placement"]["estimated_us"],
        "measured_us": document["placement"]["measured_us"],
        "additive_error_us": document["placement"]["additive_error_us"],
        "baselines": {b["name"]: b["measured_us"] for b in document["baselines"]},
        "missing": {t["name"]: t["reason"] for t in document["toolchains"] if not t["available"]},
        "candidates": document["candidates"],
        "seconds": document["seconds"],
        "rounds_us": times,
        "median_us": {label: statistics.median(values) for label, values in times.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: ours against each toolchain alone and torch; the additive error."""
    lines = [
        "| model | precision | Collage µs | of | best single toolchain | torch eager | "
        "torch.compile | additive error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        single = {n: us for n, us in row["baselines"].items() if us and " " not in n}
        best = min(single, key=lambda n: single[n]) if single else None
        ours = row["measured_us"]
        gain = f"{best} {single[best]:.1f} ({single[best] / ours - 1:+.1%})" if best else "–"
        error = row["additive_error_us"]
        medians = row["median_us"]
        lines.append(
            f"| {row['model']} | {row['precision']} | {medians['Collage']:.1f} | "
            f"{'+'.join(row['toolchains'])} | {gain} | {medians['torch eager']:.1f} | "
            f"{medians['torch.compile max-autotune']:.1f} | "
            f"{'–' if error is None else f'{error / ours:+.1%}'} |"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    from tests.gpu.models import MODELS

    parser = argparse.ArgumentParser(prog="python -m tests.gpu.bench", description=__doc__)
    parser.add_argument("model", nargs="?", choices=MODELS)
    parser.add_argument("precision", nargs="?", choices=("float32", "float16"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-bench")))
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(arguments)
    kept = options.out / "rows.json"
    rows = json.loads(kept.read_text()) if kept.exists() else []
    if options.table:
        print(table(rows))
        return 0
    if options.model is None or options.precision is None:
        parser.error("a model and a precision are needed")
    from collage_engine.machine.cuda import cuda_probe

    reason = cuda_probe().reason
    if reason is not None:
        print(f"there is no device to measure on: {reason}", file=sys.stderr)
        return 1
    row = bench(options.model, options.precision, options.out, options.budget)
    rows = [r for r in rows if (r["model"], r["precision"]) != (row["model"], row["precision"])]
    kept.write_text(json.dumps([*rows, row], indent=1))
    print(table([*rows, row]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
