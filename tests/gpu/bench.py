"""Collage against what an NVIDIA user has without it: one model and precision a call.

``python -m tests.gpu.bench MODEL PRECISION [--budget 2m] [--out DIR]``

MODEL is one of ``tests.gpu.models``, PRECISION float32 or float16. A call exports the PyTorch
module to ONNX, places it with all toolchains that are here (``collage place``), and times the
artifact, the module in eager mode and ``torch.compile`` (max-autotune), each in a process of its
own, in interleaved rounds. All replay CUDA graphs. The figures are printed as JSON, in microseconds
of a call, and written into ``DIR/MODEL-PRECISION.json`` as soon as each is known; who failed is
there with the reason. DIR also keeps the model, the artifact, the store, and what was compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from collage_engine.machine.worker import Worker
from collage_engine.support.errors import CollageError
from collage_engine.support.files import write_atomically
from tests.gpu.models import MODELS, export
from tests.gpu.subjects import COLLAGE, COMPILED, EAGER, JOB, Open, Round

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 50
OPENING_S = 900.0
"""Seconds for opening one subject, such as compiling a model with max-autotune; chosen."""
PRECISIONS = ("float32", "float16")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.bench")
    parser.add_argument("model", choices=tuple(MODELS))
    parser.add_argument("precision", choices=PRECISIONS)
    parser.add_argument("--out", type=Path, default=Path("gpu-bench"))
    parser.add_argument("--budget", default="2m", help="of placing, as collage place takes it")
    parser.add_argument("--target", default="cuda", help="cpu: a rehearsal without a device")
    options = parser.parse_args()
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("COLLAGE_CACHE_DIR", str(folder / "store"))
    bench = Bench(options, folder / f"{options.model}-{options.precision}")
    bench.place()
    bench.time_subjects()
    print(json.dumps(bench.figures, indent=1))


class Bench:
    """One model's figures, kept in a file from the first one on."""

    def __init__(self, options: argparse.Namespace, artifact: Path) -> None:
        self.options = options
        self.artifact = artifact
        self.figures: dict[str, Any] = {
            "model": options.model,
            "precision": options.precision,
            "budget": options.budget,
            "complete": False,
            "subjects": {},
        }

    def keep(self, **figures: Any) -> None:
        self.figures |= figures
        file = self.artifact.with_suffix(".json")
        write_atomically(file, json.dumps(self.figures, indent=1).encode())

    def place(self) -> None:
        """Export the module and place it."""
        model = self.artifact.with_suffix(".onnx")
        if not model.exists():
            export(self.options.model, self.options.precision, model)
        command = [sys.executable, "-m", "collage_engine", "place", str(model)]
        command += ["-o", str(self.artifact), "--inputs", str(model.with_suffix(".npz"))]
        command += ["--target", self.options.target, "--budget", self.options.budget, "--json"]
        began = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        seconds = time.monotonic() - began
        if done.returncode:
            self.keep(placing_failed=f"collage place ended with {done.returncode}")
            raise SystemExit(f"collage place ended with {done.returncode} (see above)")
        document = json.loads(done.stdout)
        names = ("device", "winner", "first_answer_s", "seconds", "candidates", "warnings")
        kept = {name: document[name] for name in names if name in document}
        self.keep(placing_s=seconds, baselines=document["baselines"], **kept)
        self.keep(placement=document["placement"])

    def time_subjects(self) -> None:
        """Open all subjects, then time rounds over those that opened."""
        workers: dict[str, Worker] = {}
        subjects = self.figures["subjects"]
        rounds: dict[str, list[float]] = {}
        try:
            for subject in (COLLAGE, EAGER, COMPILED):
                worker = workers[subject] = Worker(JOB, name="gpu-bench")
                request = Open(
                    subject=subject,
                    artifact=str(self.artifact),
                    model=self.options.model,
                    precision=self.options.precision,
                    device=self.options.target.partition(":")[0],
                )
                began = time.monotonic()
                try:
                    opened = worker.call(request, timeout_s=OPENING_S)
                except CollageError as error:
                    subjects[subject] = {"failed": str(error)}
                    self.keep()
                    continue
                subjects[subject] = {
                    "opening_s": time.monotonic() - began,
                    "max_rel_error": opened.max_rel_error,
                    "notes": opened.notes,
                    "versions": opened.versions,
                }
                rounds[subject] = []
                self.time_rounds(workers, rounds)  # a figure of each, should the next one hang
            self.time_rounds(workers, rounds, ROUNDS)
            self.keep(complete=set(rounds) == set(workers))
        finally:
            for worker in workers.values():
                worker.close()

    def time_rounds(
        self, workers: dict[str, Worker], rounds: dict[str, list[float]], count: int = 5
    ) -> None:
        """Time interleaved rounds anew, and keep the median of each subject."""
        order = random.Random(0)
        for times in rounds.values():
            times.clear()
        for _ in range(count):
            for subject in order.sample(sorted(rounds), len(rounds)):
                rounds[subject].append(workers[subject].call(Round(), timeout_s=60))
        subjects = self.figures["subjects"]
        for subject, times in rounds.items():
            subjects[subject]["median_us"] = statistics.median(times)
        if COLLAGE in rounds:
            ours = subjects[COLLAGE]
            for subject in rounds:
                subjects[subject]["ours_to_it"] = ours["median_us"] / subjects[subject]["median_us"]
        self.keep()


if __name__ == "__main__":
    main()
