"""Running an artifact by the loader that artifacts carry, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Required, TypedDict

from collage_engine.artifact.manifest import read_manifest, timed_manifest
from collage_engine.lowering.built import Kernel, working_calls
from collage_engine.lowering.stopwatch import KernelTime, time_kernels
from collage_engine.machine.cuda import cuda_probe
from collage_engine.machine.loader import run_artifact as loader
from collage_engine.machine.worker import Worker, WorkerError
from collage_engine.records.placement import LayerTime, Partition, Placement
from collage_engine.support.errors import ArtifactError, UsageError, last_line, one_sentence
from collage_engine.support.time_limits import ANSWER_S, JOB_S, with_weights
from collage_engine.support.typed import convert

TRACED_RUNS = 10
"""Runs of which a trace shows the medians; chosen."""


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
    streams: int
    """Where it was made for throughput: instances at once; there are no latencies then."""
    runs_per_s: float
    expected_runs_per_s: float | None


class EntryResults(TypedDict):
    """What running an artifact for several shapes found out."""

    artifact: str
    entries: list[ArtifactResult]


class ArtifactProcess:
    """The state of a process that holds one artifact, loaded by the loader that artifacts carry.

    A request is a method with its arguments (``partial``).
    """

    _model: Any
    _inputs: dict[str, Any]

    def __call__(self, request: Callable[[ArtifactProcess], Any]) -> Any:
        """Answer a request."""
        return request(self)

    def open(self, folder: Path) -> dict[str, Any]:
        """Load an artifact and run it on its sample: what the loader's ``check`` says."""
        self._model = loader.load(folder)
        self._inputs, truth = loader.read_sample(folder, self._model.manifest)
        return loader.check(self._model, self._inputs, truth)

    def benchmark(self) -> dict[str, Any]:
        """Time the artifact that is open as ``ArtifactResult`` has it."""
        return loader.benchmark(self._model, self._inputs)

    def time_calls(self, seconds: float, least: int) -> list[float]:
        """Return the seconds of single calls of the artifact that is open."""
        return loader.seconds_of_calls(self._model, self._inputs, seconds, least)

    def time_kernels(self) -> tuple[list[KernelTime], float]:
        """Time what the virtual machine calls; see ``lowering.stopwatch``."""
        tensors = self._model.bind(self._inputs)
        return time_kernels(self._model, lambda: self._model.invoke(tensors), TRACED_RUNS)


def artifact_process(manifest: Mapping[str, Any]) -> Worker:
    """Return a new process for an artifact with this manifest; it is an ``ArtifactProcess``."""
    return Worker(
        "collage_engine.artifact.artifact_run:ArtifactProcess",
        env=manifest["environment"],
        name="collage-artifact",
    )


def open_artifact(worker: Worker, folder: Path) -> dict[str, Any]:
    """Load an artifact in a process of ``artifact_process``; what the loader's ``check`` says."""
    size = sum(file["bytes"] for file in read_manifest(folder)["files"].values())
    request = partial(ArtifactProcess.open, folder=folder.absolute())
    report: dict[str, Any] = worker.call(request, with_weights(2 * ANSWER_S, size))
    return report


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
    manifest = read_manifest(folder, verify=True)
    if "entries" in manifest:
        results = [
            run_artifact(folder / entry["folder"], benchmark, limit_s)
            | {"dims": entry["dims"], "inputs": loader.shapes_of(entry)}
            for entry in manifest["entries"]
        ]
        return {"artifact": str(folder), "entries": results}
    if manifest.get("device", "cpu") != "cpu":
        reason = cuda_probe().reason
        if reason is not None:
            raise ArtifactError(
                f"{folder} runs on an NVIDIA device ({manifest.get('architecture')}): {reason}"
            )
    try:
        with artifact_process(manifest) as worker:
            report: dict[str, Any] = worker.call(
                partial(ArtifactProcess.open, folder=folder), limit_s
            )
            if benchmark and report["wrong"] is None:
                report |= worker.call(ArtifactProcess.benchmark, limit_s)
    except WorkerError as error:
        why = one_sentence(last_line(str(error)))
        raise ArtifactError(f"the artifact cannot be run: {why}") from error
    wrong = report.pop("wrong")
    if wrong is not None:
        raise ArtifactError(f"{folder} differs from its sample: {one_sentence(wrong)}")
    return {"artifact": str(folder), **report}


def traced_artifact(folder: Path) -> tuple[Placement, list[tuple[int, int]], str]:
    """Time an artifact's kernels on its sample in a process of its own; see ``trace_of``.

    Returns:
        The placement with its layers, which partition reads from which, and the model's name.

    Raises:
        ArtifactError: The folder is damaged.
        UsageError: It is for several shapes, for throughput, or for another device.
        WorkerError: The process crashed or hung.
    """
    manifest = timed_manifest(folder)
    if manifest.get("device", "cpu") != "cpu":
        raise UsageError(f"{folder} runs on a device, where calls return before their work is done")
    with artifact_process(manifest) as worker:
        open_artifact(worker, folder)
        calls, _ = worker.call(ArtifactProcess.time_kernels, 2 * ANSWER_S)
    placed = manifest["placement"]
    kernels = [Kernel(name=name, part=part) for name, part in placed["kernels"]]
    layers = tuple(
        LayerTime(
            name=call.kernel,
            us=call.us,
            gap_us=call.gap_us,
            partition=None if kernel is None else kernel.part,
        )
        for call, kernel in working_calls(kernels, calls)
    )
    placement = Placement(
        partitions=convert(placed["partitions"], tuple[Partition, ...], json=True),
        estimated_us=None,
        measured_us=sum(call.us + call.gap_us for call in calls),
        layers=layers,
    )
    return placement, placed["hand_overs"], manifest["model"]["name"]
