"""Runs an artifact under the stopwatch, and returns what each of its kernels took."""

from __future__ import annotations

from pathlib import Path

from collage_engine.artifact.artifact_run import ArtifactProcess, artifact_process, open_artifact
from collage_engine.artifact.paired_times import timed_manifest
from collage_engine.lowering.built import BOOKKEEPING, Kernel, kernels_of_calls
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
    owners = kernels_of_calls(kernels, [name for name, *_ in calls])
    layers, waited_us = [], 0.0
    for (name, us, gap_us), owner in zip(calls, owners, strict=True):
        waited_us += gap_us
        if owner is None and name.startswith(BOOKKEEPING):
            waited_us += us
            continue
        part = None if owner is None else owner.part
        layers.append(LayerTime(name=name, us=us, gap_us=waited_us, partition=part))
        waited_us = 0.0
    placement = Placement(
        partitions=convert(placed["partitions"], tuple[Partition, ...], json=True),
        estimated_us=None,
        measured_us=sum(us + gap_us for _, us, gap_us in calls),
        layers=tuple(layers),
    )
    return placement, placed["hand_overs"], manifest["model"]["name"]
