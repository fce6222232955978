"""Candidates on the host in a run on a device.

The host gets candidates for operators that no toolchain takes on the device, and for those that the
user pins there. Measuring everything on the host too would be wasted: a processor takes about a
hundred times as long as the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import msgspec

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.rules import CandidateSource
from collage_engine.records.graph import OperatorNumber, members
from collage_engine.records.pin import Pin
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains.asking import asking
from collage_engine.toolchains.base import Toolchain

HOST_DEVICE = "cpu"
"""The name of the host among devices."""


def on_host(instance: ToolchainInstance) -> ToolchainInstance:
    """Return a toolchain's instance for the host, beside those for the device."""
    return msgspec.structs.replace(instance, config=(("device", HOST_DEVICE), *instance.config))


def pinned_to_host(pins: Sequence[Pin]) -> tuple[int, ...]:
    """Return the operator numbers that a pin demands on the host, ascending."""
    numbers = {
        n for pin in pins if pin.kind == "device" and pin.device == HOST_DEVICE for n in pin.nodes
    }
    return tuple(sorted(numbers))


def host_sources(
    graph: DataflowGraph,
    toolchains: Sequence[Toolchain],
    threads: int,
    sources: Sequence[CandidateSource],
    pinned: Collection[int],
    make: Callable[[Toolchain, ToolchainInstance], CandidateSource],
) -> list[CandidateSource]:
    """Return the toolchain instances on the host beside those on a device.

    Args:
        graph: The model.
        toolchains: Toolchains of the run that have instances for the host.
        threads: Threads of such an instance.
        sources: The instances on the device.
        pinned: Operator numbers that the user pins to the host.
        make: Makes what is known of a toolchain's instance for the graph.

    Returns:
        The instances that take at least one operator on the host.
    """
    found = []
    left = graph.everything
    for source in sources:
        left &= ~graph.whole_part(source.taken(graph))
    operators = {*members(left), *pinned}
    for toolchain in toolchains:
        with asking(toolchain.name):
            instances = toolchain.instances(Target(threads=threads), "float32")[:1]
        for instance in instances:
            source = make(toolchain, on_host(instance))
            host = replace(
                _only(source, operators.__contains__, "a device takes it"),
                spec=None,
                whole_model=False,
                host=True,
                formats=(),
                takes_set=None,
            )
            if any(host.supports(index) is None for index in graph.operators):
                found.append(host)
    return found


def without_pinned(source: CandidateSource, pinned: Collection[int]) -> CandidateSource:
    """Return an instance on a device without the operators that are pinned to the host."""
    return _only(source, lambda number: number not in pinned, "it is pinned to the host")


def _only(
    source: CandidateSource, may: Callable[[OperatorNumber], bool], why_not: str
) -> CandidateSource:
    """Return an instance limited to some operators.

    Args:
        source: The instance.
        may: Tells whether it may take an operator number.
        why_not: The reason for those that it may not take.
    """

    def supports(index: OperatorNumber) -> str | None:
        return source.supports(index) if may(index) else why_not

    return replace(source, supports=supports)
