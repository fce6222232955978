"""Running an artifact by the loader that artifacts carry, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Required, TypedDict

from collage_engine.artifact.artifact import LOADERS
from collage_engine.artifact.loader.run_artifact import shapes_of
from collage_engine.artifact.manifest import expected_machine, read_manifest, verify_files
from collage_engine.machine.cuda import cuda_probe
from collage_engine.records.errors import ArtifactError
from collage_engine.records.reasons import last_line, one_sentence
from collage_engine.records.time_limits import JOB_S


class ArtifactResult(TypedDict, total=False):
    """What running an artifact for one shape found out."""

    artifact: Required[str]
    max_abs_error: Required[float]
    max_rel_error: Required[float]
    tolerance: Required[float]
    threads: Required[int]
    load_s: Required[float]
    first_result_s: Required[float]
    """Seconds of loading and the first run."""
    memory_bytes: Required[int]
    """What loading it added to the resident memory."""
    dims: dict[str, int]
    """Where it is one of several shapes: its dimensions."""
    inputs: dict[str, tuple[int, ...]]
    """The same of whole inputs."""
    median_us: float
    """This and what follows: where it was timed."""
    low_us: float
    """20th percentile; ``high_us`` is the 80th."""
    high_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    repeats: int
    expected_us: float | None
    """What it took when it was exported."""
    expected_machine: str
    """The device on which that was measured; empty: untold."""
    slower_than_exported: bool
    """With ``--fail-if-slower``: whether it is, by more than is allowed."""
    streams: int
    """Where it was made for throughput: instances at once; there are no latencies then."""
    runs_per_s: float
    expected_runs_per_s: float | None


class EntryResults(TypedDict):
    """What running an artifact for several shapes found out."""

    artifact: str
    entries: list[ArtifactResult]


def run_artifact(folder: Path, benchmark: bool = False, limit_s: float = JOB_S) -> dict[str, Any]:
    """Run an artifact on its sample in a process of its own, as its user would.

    Args:
        folder: The artifact.
        benchmark: Time it too.
        limit_s: Seconds that each shape may take.

    Returns:
        An ``ArtifactResult``; of an artifact for several shapes ``EntryResults``.

    Raises:
        ArtifactError: It is damaged, does not load, differs from its sample, or takes too long.
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
    try:
        report: dict[str, Any] = json.loads(last_line(done.stdout))
        wrong = report.pop("wrong")
    except (ValueError, KeyError):
        why = last_line(done.stderr, f"it ended with status {done.returncode}")
        raise ArtifactError(
            f"the artifact cannot be run: {one_sentence(why, str(folder))}"
        ) from None
    if wrong is not None:
        raise ArtifactError(f"{folder} differs from its sample: {one_sentence(wrong)}")
    if "median_us" in report:
        report["expected_machine"] = expected_machine(manifest)
    return report
