"""Puts together what every layer of a placement takes, from profiles of its module.

TVM's virtual machine is timed call by call (``lowering/stopwatch.py``), so that each of TVM's
kernels has its time. A runtime that computes a partition in one call says itself what its layers
take there. Noting that slows it down, so that it is asked in a process of its own; what its layers
leave of the call in the plain process is the runtime's own work. Where the call was faster there
nevertheless, the machine was, and its layers are scaled with it.

All times together are what the placement was measured to take: noting the calls takes time, so that
they are scaled down where their sum is more, and what passes between them is the rest.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from collage_engine.lowering.built import BuiltModule, Kernel, working_calls
from collage_engine.lowering.stopwatch import KernelTime
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.placement import LayerTime
from collage_engine.store.profiles import layers_of_operators
from collage_engine.toolchains.capabilities import ProfilesPartitions
from collage_engine.toolchains.registry import get
from collage_engine.trials.trial_job import PlacementProfile

OWN_WORK = "the runtime itself"
"""Name of what a call of a runtime takes besides its layers."""


def layer_times(
    graph: DataflowGraph,
    built: BuiltModule,
    calls: Sequence[KernelTime],
    inside: PlacementProfile,
    measured_us: float,
) -> tuple[LayerTime, ...]:
    """Return the layers of a placement in the order in which they run; see the module's docstring.

    Args:
        graph: The model's graph.
        built: What the builder says of the module.
        calls: The calls of its virtual machine in order.
        inside: What its runtimes said of their layers, and its calls in that process.
        measured_us: What the placement takes.
    """
    answers = {answer["symbol"]: answer for answer in map(json.loads, inside.inside)}
    profiled_us = {call.kernel: call.us for call in inside.calls}
    sizes = Counter(kernel.part for kernel in built.kernels)
    times: list[LayerTime] = []
    for call, kernel in working_calls(built.kernels, calls):
        if kernel is None:
            found = [LayerTime(name=_plain(call.kernel), us=call.us)]
        elif sizes[kernel.part] == 1:
            speed = call.us / (profiled_us.get(call.kernel) or call.us or 1.0)
            found = _of_partition(graph, built, call, kernel, answers.get(call.kernel), speed)
        else:
            operators = graph.record.whole_nodes(kernel.operators)
            name = _plain(call.kernel)
            found = [LayerTime(name=name, us=call.us, partition=kernel.part, operators=operators)]
        times.append(msgspec.structs.replace(found[0], gap_us=call.gap_us))
        times += found[1:]
    return _adding_up(times, measured_us)


def wants_layers(built: BuiltModule) -> bool:
    """Tell whether a runtime could say what the layers of one of the partitions take."""
    return any(
        len(part.nodes) > 1 and isinstance(get(part.instance.toolchain), ProfilesPartitions)
        for part in built.parts
    )


def _of_partition(
    graph: DataflowGraph,
    built: BuiltModule,
    call: KernelTime,
    kernel: Kernel,
    answer: Mapping[str, Any] | None,
    speed: float,
) -> list[LayerTime]:
    """Return the layers of a partition that is computed in one call.

    Args:
        graph: The model's graph.
        built: What the builder says of the module.
        call: The call.
        kernel: What it computes.
        answer: What the runtime says of the partition's layers; None: nothing.
        speed: Times what the call took in the process of the layers that it takes.
    """
    part, place = built.parts[kernel.part], kernel.part
    toolchain = get(part.instance.toolchain)
    layers = []
    if answer is not None and isinstance(toolchain, ProfilesPartitions):
        said = toolchain.partition_layers(graph, answer)
        layers = [(layer, layer.us) for layer in said if layer.us is not None]
    if not layers:
        name = _plain(call.kernel)
        return [LayerTime(name=name, us=call.us, partition=place, operators=part.nodes)]
    owners, homes = layers_of_operators(graph.record, [layer for layer, _ in layers])
    sum_us = sum(us for _, us in layers)
    share = min(max(1.0, speed), call.us / sum_us) if sum_us > 0 else 1.0
    times = [
        LayerTime(
            name=layer.kind or layer.name,
            us=us * share,
            partition=place,
            operators=tuple(k for k in part.nodes if home is not None and owners[k] == home),
        )
        for (layer, us), home in zip(layers, homes, strict=True)
    ]
    rest_us = call.us - share * sum_us
    if rest_us > 0:
        times.append(LayerTime(name=OWN_WORK, us=rest_us, partition=place))
    return times


def _plain(kernel: str) -> str:
    """Return the name of a kernel without the digest of its code."""
    return re.sub(r"_[0-9a-f]{16}$", "", kernel)


def _adding_up(times: Sequence[LayerTime], measured_us: float) -> tuple[LayerTime, ...]:
    """Return times, with the gaps before them, that add up to a whole run."""
    sum_us, gaps_us = sum(time.us for time in times), sum(time.gap_us for time in times)
    share = min(1.0, measured_us / sum_us) if sum_us > 0 else 1.0
    stretch = (measured_us - share * sum_us) / gaps_us if gaps_us > 0 else 0.0
    return tuple(
        msgspec.structs.replace(time, us=time.us * share, gap_us=time.gap_us * stretch)
        for time in times
    )
