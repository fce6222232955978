"""Collage against what an NVIDIA user has without it: one model and precision a call.

``python -m tests.gpu.bench MODEL PRECISION [--budget 5m] [--out DIR] [--quick]``

MODEL is one of ``tests.gpu.models``, PRECISION float32 or float16. A call builds the model, places
it with all toolchains that are here (``collage place``), and times the artifact, torch eager and
``torch.compile`` (max-autotune), each in a process of its own, in interleaved rounds. All replay
CUDA graphs. The figures are printed as JSON, in microseconds of a call; who failed is there with
the reason. DIR keeps the model, the artifact, the store, and what was compiled. ``--quick`` leaves
out ``torch.compile``, which takes minutes to compile a model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from collage_engine.machine.worker import Worker
from collage_engine.support.errors import CollageError
from tests.gpu.models import MODELS, build
from tests.gpu.subjects import COLLAGE, COMPILED, EAGER, JOB, Open, Round

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 50
OPENING_S = 900.0
"""Seconds for opening one subject, such as compiling a model with max-autotune; chosen."""


def placed(model: Path, artifact: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Place the model; the document of ``collage place``, as far as the figures need it."""
    command = [sys.executable, "-m", "collage_engine", "place", str(model), "-o", str(artifact)]
    command += ["--target", options.target, "--budget", options.budget, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"collage place ended with {done.returncode} (see above)")
    document = json.loads(done.stdout)
    keys = ("device", "winner", "placement", "baselines", "candidates", "warnings")
    return {key: document[key] for key in keys}


def timed(model: Path, artifact: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Open all subjects, then rounds over those that opened."""
    workers: dict[str, Worker] = {}
    found: dict[str, dict[str, Any]] = {}
    taken: dict[str, list[float]] = {}
    device = options.target.partition(":")[0]
    try:
        for subject in (COLLAGE, EAGER) if options.quick else (COLLAGE, EAGER, COMPILED):
            worker = workers[subject] = Worker(JOB, name="gpu-bench")
            request = Open(subject=subject, artifact=str(artifact), model=str(model), device=device)
            try:
                opened = worker.call(request, timeout_s=OPENING_S)
            except CollageError as error:
                found[subject] = {"failed": str(error)}
                continue
            taken[subject] = []
            found[subject] = {
                "max_rel_error": opened.max_rel_error,
                "notes": opened.notes,
                "versions": opened.versions,
            }
        order = random.Random(0)
        for _ in range(ROUNDS):
            for subject in order.sample(sorted(taken), len(taken)):
                taken[subject].append(workers[subject].call(Round(), timeout_s=60))
    finally:
        for worker in workers.values():
            worker.close()
    for subject, rounds in taken.items():
        found[subject]["median_us"] = statistics.median(rounds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.bench")
    parser.add_argument("model", choices=tuple(MODELS))
    parser.add_argument("precision", choices=("float32", "float16"))
    parser.add_argument("--out", type=Path, default=Path("gpu-bench"))
    parser.add_argument("--budget", default="5m", help="of placing, as collage place takes it")
    parser.add_argument("--target", default="cuda", help="cpu: a rehearsal without a device")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    import onnx

    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["COLLAGE_CACHE_DIR"] = str(folder / "store")
    artifact = folder / f"{options.model}-{options.precision}"
    model = artifact.with_suffix(".onnx")
    onnx.save(build(options.model, options.precision), str(model))
    figures = placed(model, artifact, options) | {"subjects": timed(model, artifact, options)}
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
