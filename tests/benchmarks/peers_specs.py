"""What runs in the benchmark against other runtimes: our artifact, placed, and the others."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from collage_engine.records.toolchain import Target
from collage_engine.toolchains.registry import get, probe_all
from tests.benchmarks.peers_report import FLOAT32, OURS
from tests.benchmarks.peers_run import PeerFailed
from tests.benchmarks.place import model_file
from tests.support.command import ROOT, collage

FLOAT_TWIN = {"resnet_block_int8": "resnet_block"}
"""Quantised model → the same in float32, for the float32 runtimes beside it."""
ALONE = ("tvm", "onednn")
OTHERS = ("onnxruntime", "openvino", "torch", "ncnn", "mnn")
"""Runtimes of others; where their packages are missing they take no part."""


def place(
    model: Path, out: Path, threads: int, options: argparse.Namespace, *more: str
) -> dict[str, Any]:
    """``collage place``; the document it printed, kept beside the artifact."""
    kept = out.with_suffix(".json")
    if options.reuse and kept.exists() and out.exists():
        return json.loads(kept.read_text())
    command = f"place {model} -o {out} --json --threads {threads} --budget {options.budget} "
    command += f"--tune-budget {options.tune_budget} --precision {options.precision}"
    if options.tolerance:
        command += f" --tolerance {options.tolerance}"
    done = collage(command, *more, timeout=None)
    if done.returncode:
        raise PeerFailed(f"collage place: {done.stderr.strip().splitlines()[-1]}")
    kept.write_text(done.stdout)
    return json.loads(done.stdout)


def tuned_alone(
    model: Path, threads: int, keep: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """TVM on the whole model, one partition, with the tuned kernels that placing left in the store.

    Nothing more is tuned: ours has not had more time for it either.
    """
    out = keep / f"{model.stem}-{threads}-tvm-tuned"
    spec = {"name": "tvm tuned alone", "kind": "artifact", "folder": str(out)}
    try:
        more = ("--toolchains", "tvm", "--pin", "*=exactly", "--tune-budget", "0s")
        document = place(model, out, threads, options, *more)
    except PeerFailed as failure:
        return spec | {"failed": str(failure)}
    if not any(part["config"].get("tuned") for part in document["placement"]["partitions"]):
        return spec | {"failed": "no tuned kernel is better than the untuned ones"}
    return spec


def alone(model: Path, artifact: Path, threads: int, keep: Path) -> list[dict[str, Any]]:
    """Specs of the toolchains alone on the whole model; those that refuse have a reason."""
    states = {state.name: state for state in probe_all(ALONE)}
    specs = []
    for name in ALONE:
        state = states[name]
        if not state.available:
            specs.append({"name": f"{name} alone", "failed": f"absent: {state.reason}"})
            continue
        for instance in get(name).instances(Target.cpu(threads), FLOAT32):
            if instance.library:
                continue  # that is two of them
            out = keep / f"{model.stem}-{threads}-{instance.id}"
            command = [sys.executable, "-m", "tests.benchmarks.peers_alone", str(model)]
            command += [instance.id, str(threads), str(artifact), str(out)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
            spec: dict[str, str] = {
                "name": f"{instance.id} alone",
                "kind": "artifact",
                "folder": str(out),
                "version": state.version or "",
            }
            if done.returncode:
                lines = done.stderr.strip().splitlines()
                spec["failed"] = lines[-1] if lines else f"status {done.returncode}"
            specs.append(spec)
    return specs


def specs_of(
    name: str, model: Path, artifact: Path, threads: int, keep: Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Every runtime that is to run, ours first."""
    precision = options.precision
    twin = model_file(FLOAT_TWIN[name], keep) if name in FLOAT_TWIN else model
    specs: list[dict[str, Any]] = [
        {"name": OURS, "kind": "artifact", "folder": str(artifact), "precision": precision}
    ]
    pythons = dict(pair.split("=", 1) for pair in options.python)
    for kind in OTHERS:
        python = pythons.get(kind, sys.executable)
        folder = str(keep / f"{twin.stem}-{kind}")
        about = {"name": kind, "kind": kind, "python": python, "folder": folder}
        specs.append(about | {"model": str(twin)})
        if precision == "bf16" and kind == "openvino":
            specs.append(
                {
                    "name": f"{kind} bf16",
                    "kind": kind,
                    "model": str(model),
                    "python": python,
                    "precision": "bf16",
                }
            )
        if precision == "int8" and kind in ("onnxruntime", "openvino") and twin != model:
            specs.append(
                {
                    "name": f"{kind} int8",
                    "kind": kind,
                    "model": str(model),
                    "python": python,
                    "precision": "int8",
                }
            )
    if not options.no_alone:
        specs += alone(twin, artifact, threads, keep)
        if options.tune_budget.strip("0") not in ("", "s", "m") and options.precision == FLOAT32:
            specs.append(tuned_alone(twin, threads, keep, options))
    wanted = options.peers.split(",") if options.peers else None
    return [
        spec | {"threads": threads, "precision": spec.get("precision", FLOAT32)}
        for spec in specs
        if wanted is None or spec["name"] == OURS or spec["name"].split()[0] in wanted
    ]
