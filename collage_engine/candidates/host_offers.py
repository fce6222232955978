"""What a run on a device offers on the host: whatever nothing on the device takes, what is so
small that copying it there and back may pay, and what the user pins there.

Everything else would only be measured to lose: a processor takes a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import msgspec

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.offer import Offer
from collage_engine.records.numbering import NodeIndex, OperatorNumber
from collage_engine.records.pin import Pin
from collage_engine.records.precision import PRODUCTS
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains.base import Toolchain

HOST_DEVICE = "cpu"
SMALL_BYTES = 64 << 10
"""Of all that an operator reads and gives."""


def on_host(instance: ToolchainInstance) -> ToolchainInstance:
    """A toolchain's instance for the host, beside those for the device."""
    return msgspec.structs.replace(instance, config=(("device", HOST_DEVICE), *instance.config))


def pinned_to_host(pins: Sequence[Pin]) -> tuple[int, ...]:
    """Operators that a pin wants on the host."""
    wanted = {
        n for pin in pins if pin.kind == "device" and pin.device == HOST_DEVICE for n in pin.nodes
    }
    return tuple(sorted(wanted))


def host_offers(
    graph: DataflowGraph,
    toolchains: Sequence[Toolchain],
    threads: int,
    offers: Sequence[Offer],
    pinned: Collection[int],
    make: Callable[[Toolchain, ToolchainInstance], Offer],
) -> list[Offer]:
    """Offers on the host beside these on a device; none where there is nothing to offer."""
    found = []
    nobody_takes = _orphans(graph, offers)
    for toolchain in toolchains:
        for instance in toolchain.instances(Target.cpu(threads), "float32")[:1]:
            offer = make(toolchain, on_host(instance))

            def supports(index: NodeIndex, offer: Offer = offer) -> str | None:
                number = graph.operator_number[index]
                if number in nobody_takes or number in pinned or _small(graph, index):
                    return offer.supports(index)
                return "too much to be copied to the host and back"

            host = replace(
                offer,
                spec=None,
                supports=supports,
                whole_model=False,
                host=True,
                formats=(),
                made_of=None,
            )
            if any(supports(index) is None for index in graph.operators):
                found.append(host)
    return found


def for_orphans(
    graph: DataflowGraph, offers: Sequence[Offer], pinned: Collection[int] = ()
) -> list[Offer]:
    """The offers on the host among these, for nothing but what no device takes or is pinned."""
    hosts = [offer for offer in offers if offer.host]
    if not hosts:
        return []
    wanted = _orphans(graph, [offer for offer in offers if not offer.host]).union(pinned)
    return [
        _only(graph, offer, wanted.__contains__, "a device takes it") for offer in hosts if wanted
    ]


def but_pinned(graph: DataflowGraph, offer: Offer, pinned: Collection[int]) -> Offer:
    """An offer on a device without what is pinned to the host."""
    return _only(graph, offer, lambda number: number not in pinned, "it is pinned to the host")


def _only(
    graph: DataflowGraph, offer: Offer, may: Callable[[OperatorNumber], bool], why_not: str
) -> Offer:
    def supports(index: NodeIndex) -> str | None:
        return offer.supports(index) if may(graph.operator_number[index]) else why_not

    return replace(offer, supports=supports)


def _orphans(graph: DataflowGraph, offers: Sequence[Offer]) -> frozenset[int]:
    return frozenset(
        number
        for number, index in enumerate(graph.operators)
        if all(offer.refusal(graph, index) is not None for offer in offers)
    )


def _small(graph: DataflowGraph, index: NodeIndex) -> bool:
    node = graph.nodes[index]
    if node.op in PRODUCTS:
        return False
    read = (kind for i in node.inputs for kind in graph.nodes[i].types)
    return sum(kind.bytes for kind in (*read, *node.types)) <= SMALL_BYTES
