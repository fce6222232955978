"""Runs an artifact under the stopwatch, and returns what each of its kernels took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from collage_engine.artifact.artifact_run import ArtifactProcess, artifact_process, open_artifact
from collage_engine.artifact.paired_times import timed_manifest
from collage_engine.lowering.built import BOOKKEEPING, Kernel, kernels_of_calls
from collage_engine.records.placement import LayerTime, Partition, Placement
from collage_engine.support.errors import UsageError
from collage_engine.support.time_limits import ANSWER_S
from collage_engine.support.typed import convert

RUNS = 3
"""Runs of which the median one is shown: the fewest that have one between two others."""


def traced_artifact(folder: Path) -> tuple[Placement, list[tuple[int, int]], str]:
    """Run an artifact on its sample in a process of its own; see ``drawing.trace``.

    Noting the times adds a quarter of a microsecond to every kernel.

    Returns:
        The placement with the layers of one run, which partition reads from which, and the model's
        name.

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
        names, moments = worker.call(partial(ArtifactProcess.trace_calls, runs=RUNS), 2 * ANSWER_S)
    median = sorted(moments, key=lambda run: run[-1] - run[0])[len(moments) // 2]
    placement = manifest["placement"]
    return traced(placement, names, median), placement["hand_overs"], manifest["model"]["name"]


def traced(placement: Mapping[str, Any], names: Sequence[str], moments: Sequence[int]) -> Placement:
    """Return a manifest's placement with the layers of a run.

    Args:
        placement: Its ``partitions``, in the order in which they run, and their ``kernels``.
        names: What the virtual machine called, in order.
        moments: As ``stamp_kernels`` returns them for a run.
    """
    times = [(moment - moments[0]) / 1000 for moment in moments]
    owners = kernels_of_calls([Kernel(name=n, part=p) for n, p in placement["kernels"]], names)
    spans = zip(times[1:-1:2], times[2:-1:2], strict=True)
    layers, last = [], 0.0
    for name, (begin, end), owner in zip(names, spans, owners, strict=True):
        if owner is None and name.startswith(BOOKKEEPING):
            continue
        place = None if owner is None else owner.part
        layers.append(LayerTime(name=name, us=end - begin, gap_us=begin - last, partition=place))
        last = end
    empty: Any = {"candidate": "", "config": {}, "nodes": [], "onnx_nodes": []}
    told = [{"estimated_us": None, **empty, **part} for part in placement["partitions"]]
    parts = [convert(part, Partition, json=True) for part in told]
    return Placement(
        partitions=tuple(parts), estimated_us=None, measured_us=times[-1], layers=tuple(layers)
    )
