"""Collage against what an NVIDIA user has without it: one model and precision a call.

``python -m tests.gpu.bench MODEL PRECISION [--out DIR] [--minutes 7.5] [--quick] [--table]``

MODEL is one of ``tests.gpu.models``, PRECISION float32 or float16. A call goes on where the last
one ended: it builds the model, places it with all toolchains that are here (``collage place``, in
as many calls as that needs: the store carries what was measured), and times the artifact, torch
eager and ``torch.compile`` (max-autotune), each in a process of its own, in interleaved rounds.
All replay CUDA graphs. It ends within ``--minutes``: with 0 when the row is finished, with 3 when
the same call has to be made again, with 1 when something failed, which it says in a sentence.
DIR keeps the store, the compiled kernels, torch's compiled kernels and a row per model;
``--table`` prints the rows as Markdown, ``--again`` forgets a model's row first, ``--quick`` leaves
out ``torch.compile``, which takes minutes to compile a model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage_engine.machine.worker import Worker
from collage_engine.records.errors import CollageError
from tests.gpu.subjects import COLLAGE, COMPILED, EAGER, JOB, Open, Round
from tests.gpu.table import summary, table

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 50
DONE, FAILED, MORE = 0, 1, 3
AFTER_MEASURING_S = 150.0
"""What a run takes after its measuring: building the covers and baselines, confirming them."""
TIMING_S = 100.0
"""For the artifact and torch eager; compiling a model with max-autotune takes more."""
SUBJECTS = (COLLAGE, EAGER, COMPILED)


class Unfinished(Exception):
    """The time of this call is up; the next one goes on."""


class Bench:
    """One model in one precision."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.name: str = options.model
        self.precision: str = options.precision
        self.folder: Path = options.out.resolve()
        self.target: str = options.target
        self.budget_s: float | None = options.budget
        self.subjects = SUBJECTS[:-1] if options.quick else SUBJECTS
        self.end = time.monotonic() + 60 * options.minutes
        label = f"{self.name}-{self.precision}"
        self.model = self.folder / f"{label}.onnx"
        self.artifact = self.folder / label
        self.kept = self.folder / "rows" / f"{label}.json"
        if options.again:
            self.kept.unlink(missing_ok=True)
        self.row: dict[str, Any] = {"model": self.name, "precision": self.precision}
        if self.kept.exists():
            self.row = json.loads(self.kept.read_text())

    def left(self) -> float:
        return self.end - time.monotonic()

    def keep(self, **news: Any) -> None:
        """Add to the row, on disk too; never half of it."""
        self.row |= news
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        beside = self.kept.with_suffix(".partial")
        beside.write_text(json.dumps(self.row, indent=1))
        beside.replace(self.kept)

    def go(self) -> None:
        """Do what is not done yet. ``Unfinished`` when time is up, CollageError with a reason."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.model.exists():
            import onnx

            from tests.gpu.models import build

            beside = self.model.with_suffix(".partial")
            onnx.save(build(self.name, self.precision), str(beside))
            beside.replace(self.model)
        if "placed" not in self.row or not (self.artifact / "manifest.json").exists():
            self.place()
        wanted = [
            s
            for s in self.subjects
            if s not in self.row.get("median_us", {}) and s not in self.row.get("failed", {})
        ]
        if wanted:
            self.time()

    # ------------------------------------------------------------------ placing

    def place(self) -> None:
        measuring = self.left() - AFTER_MEASURING_S
        if measuring < 60:
            raise Unfinished("too little time is left to place the model")
        budget = int(min(measuring, self.budget_s or measuring))
        command = [
            sys.executable,
            "-m",
            "collage_engine",
            "place",
            str(self.model),
            "-o",
            str(self.artifact),
            "--target",
            self.target,
            "--budget",
            f"{budget}s",
            "--json",
        ]
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                timeout=self.left() + 60,
                env=self.environment(),
            )
        except subprocess.TimeoutExpired:
            raise Unfinished("placing took longer; what was measured is kept") from None
        if done.returncode:
            self.keep(tries=self.row.get("tries", 0) + 1)
            if self.row["tries"] < 3:
                raise Unfinished(f"collage place ended with {done.returncode} (see above)")
            raise CollageError(f"collage place ended with {done.returncode}, three times")
        document = json.loads(done.stdout)
        placement = document["placement"]
        self.keep(
            placed=time.strftime("%Y-%m-%d %H:%M"),
            device=document["device"],
            winner=document["winner"],
            toolchains=sorted({p["toolchain"] for p in placement["partitions"]}),
            partitions=len(placement["partitions"]),
            **{k: placement[k] for k in ("estimated_us", "measured_us", "additive_error_us")},
            baselines=[
                {k: b[k] for k in ("name", "kind", "measured_us", "reason")}
                for b in document["baselines"]
            ],
            missing={t["name"]: t["reason"] for t in document["toolchains"] if not t["available"]},
            versions={t["name"]: t["version"] for t in document["toolchains"] if t["available"]},
            candidates=document["candidates"],
            seconds=document["seconds"],
            warnings=document["warnings"],
            median_us={},
            failed={},
        )

    def environment(self) -> dict[str, str]:
        """What carries compiled and measured things from one call to the next."""
        return {
            "COLLAGE_BUILD_DIR": str(self.folder / "build"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "TRITON_CACHE_DIR": str(self.folder / "triton"),
            **os.environ,
            "COLLAGE_CACHE_DIR": str(self.folder / "store"),
        }

    # ------------------------------------------------------------------ timing

    def time(self) -> None:
        """Open all subjects, then rounds over those that opened."""
        if self.left() < TIMING_S:
            raise Unfinished("placed; too little time is left to time it")
        env = {k: v for k, v in self.environment().items() if os.environ.get(k) != v}
        workers: dict[str, Worker] = {}
        failed: dict[str, str] = {}
        notes: dict[str, str] = {}
        errors: dict[str, float] = {}
        versions = dict(self.row.get("versions", {}))
        device = self.target.partition(":")[0]
        try:
            for subject in self.subjects:
                worker = workers[subject] = Worker(JOB, env=env, name="gpu-bench")
                request = Open(
                    subject=subject,
                    artifact=str(self.artifact),
                    model=str(self.model),
                    device=device,
                )
                try:
                    opened = worker.call(request, timeout_s=max(20.0, self.left() - 45))
                except CollageError as error:
                    failed[subject] = (str(error).strip().splitlines() or ["?"])[0][:300]
                    workers.pop(subject).close()
                    continue
                errors[subject] = opened.max_rel_error
                versions |= opened.versions
                if opened.notes:
                    notes[subject] = "; ".join(opened.notes)
            rounds = self.rounds(workers, failed)
        finally:
            for worker in workers.values():
                worker.close()
        slow = [s for s, why in failed.items() if "no answer within" in why]
        if slow and self.row.get("slow", 0) < 2:
            # What torch has compiled until now is in its cache: the next call gets further.
            self.keep(slow=self.row.get("slow", 0) + 1)
            raise Unfinished(f"{', '.join(slow)} took longer to start than was left")
        row = {
            "rounds_us": rounds,
            "failed": failed,
            "notes": notes,
            "errors": errors,
            "versions": versions,
        }
        self.keep(**row, median_us=summary(row))

    def rounds(
        self, workers: Mapping[str, Worker], failed: dict[str, str]
    ) -> dict[str, list[float]]:
        """Microseconds of a call, per round; who fails leaves."""
        taken: dict[str, list[float]] = {subject: [] for subject in workers}
        order = random.Random(0)
        for number in range(ROUNDS):
            if number >= 10 and self.left() < 10:
                break
            for subject in order.sample(sorted(taken), len(taken)):
                try:
                    taken[subject].append(workers[subject].call(Round(), timeout_s=60))
                except CollageError as error:
                    failed[subject] = (str(error).strip().splitlines() or ["?"])[0][:300]
                    del taken[subject]
        return taken


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """The rows so far, in the order in which the figures are wanted."""
    from tests.gpu.models import MODELS

    found = [json.loads(file.read_text()) for file in sorted((folder / "rows").glob("*.json"))]
    place = {name: number for number, name in enumerate(MODELS)}
    return sorted(found, key=lambda r: (place.get(r["model"], 99), r["precision"]))


def seconds(text: str) -> float:
    from collage_engine.cli.options import duration

    return float(duration(text))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    from tests.gpu.models import MODELS

    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.bench", description=__doc__, formatter_class=shape
    )
    parser.add_argument("model", nargs="?", choices=tuple(MODELS))
    parser.add_argument("precision", nargs="?", choices=("float32", "float16"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-bench")))
    parser.add_argument("--minutes", type=float, default=7.5, help="of this call (default 7.5)")
    parser.add_argument("--budget", type=seconds, help="for measuring; default: what is left")
    parser.add_argument("--target", default="cuda", help="cpu: a rehearsal without a device")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(arguments)
    if not options.table and (options.model is None or options.precision is None):
        parser.error("a model and a precision are needed")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.table:
        print(table(rows_in(options.out)))
        return DONE
    if options.target != "cpu":
        from collage_engine.machine.cuda import cuda_probe

        reason = cuda_probe().reason
        if reason is not None:
            print(f"there is no device to measure on: {reason}", file=sys.stderr)
            return FAILED
    bench = Bench(options)
    try:
        bench.go()
    except Unfinished as unfinished:
        print(
            f"{bench.name} {bench.precision}: {unfinished}; make the same call again",
            file=sys.stderr,
        )
        return MORE
    except (CollageError, OSError) as error:
        print(f"{bench.name} {bench.precision}: {error}", file=sys.stderr)
        return FAILED
    print(table(rows_in(options.out)))
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
