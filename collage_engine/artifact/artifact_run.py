"""Running an artifact by the loader that artifacts carry, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage_engine.artifact.artifact import LOADERS
from collage_engine.artifact.loader.run_artifact import shapes_of
from collage_engine.artifact.manifest import expected_machine, read_manifest, verify_files
from collage_engine.machine.cuda import cuda_probe
from collage_engine.records.errors import ArtifactError
from collage_engine.records.reasons import last_line, one_sentence

RUN_TIMEOUT_S = 3600.0
"""Seconds after which an artifact that runs is ended; chosen, an hour for long benchmarks."""


def run_artifact(
    folder: Path, benchmark: bool = False, limit_s: float = RUN_TIMEOUT_S
) -> dict[str, Any]:
    """Run an artifact on its sample in a process of its own, as its user would.

    The answer has ``max_abs_error``, ``max_rel_error``, ``tolerance``, ``threads``, ``load_s``,
    ``first_result_s`` (loading and the first run), ``memory_bytes`` (what loading it added to the
    resident memory; None where that is not known) and, with ``benchmark``, ``median_us``,
    ``low_us`` and ``high_us`` (20th and 80th percentile), ``p50_us``, ``p90_us``, ``p99_us``,
    ``repeats``, ``expected_us`` and ``expected_machine``, the device on which that was measured
    (empty: untold).
    One that was made for throughput has ``streams``, ``runs_per_s`` and ``expected_runs_per_s``
    instead of latencies.
    Of an artifact for several shapes each is run by itself: ``entries`` is a list of such answers,
    each with its ``dims`` and ``inputs``.
    ``ArtifactError`` when it is damaged, does not load, differs from its sample, or takes longer
    than ``limit_s`` seconds.
    """
    folder = Path(folder).absolute()
    manifest = read_manifest(folder)
    verify_files(folder, manifest)
    if "entries" in manifest:
        results = [
            run_artifact(folder / entry["folder"], benchmark, limit_s)
            | {"dims": entry["dims"], "inputs": shapes_of(entry)}
            for entry in manifest["entries"]
        ]
        return {"artifact": str(folder), "entries": results}
    if manifest.get("device", "cpu") != "cpu":
        reason = cuda_probe().reason
        if reason is not None:
            raise ArtifactError(
                f"{folder} runs on an NVIDIA device ({manifest.get('architecture')}): {reason}"
            )
    command = [sys.executable, "-P", str(LOADERS / "run_artifact.py"), str(folder), "--json"]
    if benchmark:
        command.append("--benchmark")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise ArtifactError(f"{folder} did not finish within {limit_s:g} s") from error
    report: dict[str, Any] | None = None
    with contextlib.suppress(ValueError):
        report = json.loads(last_line(done.stdout))
    if not isinstance(report, dict) or "agrees" not in report:
        why = last_line(done.stderr, f"it ended with status {done.returncode}")
        raise ArtifactError(f"the artifact cannot be run: {one_sentence(why, str(folder))}")
    return _result(folder, report, manifest)


def _result(folder: Path, report: dict[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary of an entry that was run; ``ArtifactError``: it differs from its sample."""
    if not report["agrees"]:
        raise ArtifactError(
            f"{folder} differs from its sample: {one_sentence(report['wrong'], '')}"
        )
    result = {
        "artifact": str(folder),
        "max_abs_error": report["max_abs_error"],
        "max_rel_error": report["max_rel_error"],
        "tolerance": report["tolerance"],
        "threads": manifest.get("threads", 1),
        "load_s": report["load_s"],
        "first_result_s": report["first_result_s"],
        "memory_bytes": report.get("memory_bytes"),
    }
    if "runs_per_s" in report:
        names = ("streams", "runs_per_s", "expected_runs_per_s")
        result.update({name: report[name] for name in names})
    if "latency_us" in report:
        latency = report["latency_us"]
        result.update(
            median_us=latency["median"],
            low_us=latency["p20"],
            high_us=latency["p80"],
            **{f"{name}_us": latency[name] for name in ("p50", "p90", "p99")},
            repeats=latency["count"],
            expected_us=latency["expected"],
            expected_machine=expected_machine(manifest),
        )
    return result
