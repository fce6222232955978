"""Runs an artifact under the stopwatch, and returns what each of its kernels took."""

from __future__ import annotations

from pathlib import Path

from collage_engine.artifact.artifact_run import ArtifactProcess, artifact_process, open_artifact
from collage_engine.artifact.paired_times import timed_manifest
from collage_engine.lowering.built import Kernel, working_calls
from collage_engine.records.placement import LayerTime, Partition, Placement
from collage_engine.support.errors import UsageError
from collage_engine.support.time_limits import ANSWER_S
from collage_engine.support.typed import convert


def traced_artifact(folder: Path) -> tuple[Placement, list[tuple[int, int]], str]:
    """Time an artifact's kernels on its sample in a process of its own; see ``drawing.trace``.

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
