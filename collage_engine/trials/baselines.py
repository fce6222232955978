"""Makes the baselines: what a user could have without Collage.

They are each toolchain alone on the whole model, TVM's FuseOps, greedy partitioning in the user's
order, and the user's own placements.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from collage_engine.candidates.host_candidates import without_pinned
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import make_candidate
from collage_engine.partition.enumerate import CandidateSource
from collage_engine.partition.fuse_ops import fused_groups
from collage_engine.partition.greedy import greedy
from collage_engine.partition.regions import merge_regions
from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import GraphRecord, members
from collage_engine.records.operators import onnx_type
from collage_engine.records.pin import Pin
from collage_engine.records.precision import PRODUCTS, is_reduced
from collage_engine.records.settings import RunSettings
from collage_engine.support.errors import UsageError, displayable
from collage_engine.trials.contender import Contender
from collage_engine.wording.sentences import refusal_text

if TYPE_CHECKING:
    from collage_engine.candidates.catalog import CandidateCatalog


def baselines(
    graph: DataflowGraph, catalog: CandidateCatalog, settings: RunSettings
) -> list[Contender]:
    """Return every baseline, impossible ones with a reason."""
    users = [
        _user_placement(graph, catalog, placement, number)
        for number, placement in enumerate(settings.placements, start=1)
    ]
    return [
        *_whole_models(graph, catalog),
        *_fuse_ops(graph, catalog),
        *_greedy(graph, catalog),
        *users,
    ]


def unmeasured_choices(
    graph: DataflowGraph,
    catalog: CandidateCatalog,
    settings: RunSettings,
    on_host: Collection[int] = (),
) -> list[Contender]:
    """Return what can be chosen where nothing can be timed, most wanted first.

    The user's placements, greedy partitioning in the user's order, the toolchains of that order one
    by one.

    Args:
        graph: The model.
        catalog: the toolchains in the user's order.
        settings: has the user's placements.
        on_host: operators that are pinned there.
    """
    defaults = [source for source in catalog.sources if not source.instance.config]
    choices = [
        _user_placement(graph, catalog, placement, number)
        for number, placement in enumerate(settings.placements, start=1)
    ]
    hosts = [source for source in catalog.sources if source.host]
    if on_host:
        defaults = [without_pinned(source, on_host) for source in defaults]
    if len(defaults) > 1 or hosts:
        choices.append(_greedy_contender(graph, [*defaults, *hosts]))
    return [*choices, *_whole_models(graph, catalog)]


def _refused(graph: DataflowGraph, source: CandidateSource) -> str | None:
    """Return why a source cannot take the whole model, naming the operator; None when it can."""
    for index in graph.operators:
        refusal = source.refusal(graph, index)
        if refusal is not None:
            node, why = graph.nodes[index], refusal_text(refusal)
            kind = onnx_type(node.op)
            where = f" ({node.onnx_nodes[0]})" if node.onnx_nodes else ""
            return f"cannot take {kind}{where}: {why.removeprefix(f'{kind}: ')}"
    return None


def _whole_models(graph: DataflowGraph, catalog: CandidateCatalog) -> list[Contender]:
    everything = graph.operators
    contenders = []
    for source in catalog.sources:
        instance = source.instance
        if not source.whole_model or (is_reduced(instance) and not _has_products(graph)):
            continue
        refused = _refused(graph, source)
        if not everything:
            refused = "the model has no operator to run: its outputs are inputs or constants"
        contenders.append(
            Contender(
                name=instance.id,
                kind="whole-model",
                cover=(make_candidate(graph, instance, everything, rule="whole-model"),),
                reason=refused,
            )
        )
    return contenders


def _has_products(graph: DataflowGraph) -> bool:
    """Tell whether reduced precision would change anything."""
    return any(graph.nodes[index].op in PRODUCTS for index in graph.operators)


def _fuse_ops(graph: DataflowGraph, catalog: CandidateCatalog) -> list[Contender]:
    """Return the contenders in which every group of TVM's FuseOps is a partition of its own."""
    groups = [tuple(members(group)) for group in fused_groups(graph)]
    return [
        Contender(
            name=f"{source.instance.id} FuseOps",
            kind="fuseops",
            cover=tuple(
                make_candidate(graph, source.instance, group, rule="fuseops") for group in groups
            ),
            reason=_refused(graph, source),
        )
        for source in catalog.sources
        if source.lowers_to_tir and not source.instance.config
    ]


def _greedy(graph: DataflowGraph, catalog: CandidateCatalog) -> list[Contender]:
    """Return greedy partitionings: one for each toolchain and precision, and one for all together.

    What a toolchain does not take goes to the one that lowers to TIR.
    """
    defaults = [source for source in catalog.sources if not source.instance.config]
    external = [source for source in defaults if not source.lowers_to_tir]
    native = [source for source in defaults if source.lowers_to_tir]
    orders = [[source, *native] for source in external]
    hosts = [source for source in catalog.sources if source.host]
    if len(external) > 1 or (hosts and not external):
        orders.append([*external, *native])
    if _has_products(graph):
        orders += [[source, *native] for source in catalog.sources if is_reduced(source.instance)]
    return [_greedy_contender(graph, [*order, *hosts]) for order in orders]


def _greedy_contender(graph: DataflowGraph, order: Sequence[CandidateSource]) -> Contender:
    name = "greedy " + " → ".join(source.instance.id for source in order)
    greedy_cover = greedy(graph, order)
    if greedy_cover.uncovered:
        node = graph.nodes[greedy_cover.uncovered[0]]
        return Contender(name=name, kind="greedy", reason=f"none of them takes {node.op}")
    cover = tuple(
        make_candidate(graph, p.source.instance, p.operators, rule="greedy")
        for p in greedy_cover.partitions
    )
    return Contender(name=name, kind="greedy", cover=cover)


def check_placements(
    graph: GraphRecord, folded: Sequence[str], settings: RunSettings, toolchains: Sequence[str]
) -> None:
    """Check before anything is measured that the user's own placements fit the model.

    Nodes that clean-up removed may be listed.

    Raises:
        UsageError: a placement names a node that the model has not, or an unknown toolchain.
    """
    names = {name.lower() for name in folded} | {
        name.lower() for node in graph.nodes for name in node.onnx_nodes
    }
    for wanted in settings.placements:
        for node, toolchain in wanted.items():
            if node.lower() not in names:
                raise UsageError(f"--placement: the model has no node {displayable(node)!r}")
            if toolchain.partition("[")[0] not in toolchains:
                raise UsageError(
                    f"--placement: {node!r} is put on {displayable(toolchain)!r}, "
                    "which is no toolchain; "
                    f"known are {', '.join(toolchains)}"
                )


def _user_placement(
    graph: DataflowGraph, catalog: CandidateCatalog, wanted: Mapping[str, str], number: int
) -> Contender:
    """Return a placement by ONNX node names; equal neighbours become one partition."""
    name = f"user {number}" if number > 1 else "user"
    by_id = {source.instance.id: k for k, source in enumerate(catalog.sources)}
    for place, source in reversed(list(enumerate(catalog.sources))):
        by_id[source.instance.toolchain] = place
    lowered = {key.lower(): value for key, value in wanted.items()}
    owner: list[Hashable | None] = []
    for index in graph.operators:
        node = graph.nodes[index]
        first = node.onnx_nodes[0] if node.onnx_nodes else node.op
        choice = next(
            (lowered[onnx.lower()] for onnx in node.onnx_nodes if onnx.lower() in lowered), None
        )
        if choice is None:
            return Contender(name=name, kind="user", reason=f"it places no toolchain on {first}")
        if choice not in by_id:
            return Contender(name=name, kind="user", reason=f"{choice} is not among the toolchains")
        refused = catalog.sources[by_id[choice]].refusal(graph, index)
        if refused is not None:
            why = f"{choice} cannot take {first}: {refusal_text(refused)}"
            return Contender(name=name, kind="user", reason=why)
        owner.append(by_id[choice])
    cover = _regions(graph, catalog, owner)
    if isinstance(cover, str):
        return Contender(name=name, kind="user", reason=cover)
    return Contender(name=name, kind="user", cover=cover)


def pinned_covers(
    graph: DataflowGraph, catalog: CandidateCatalog, pins: Sequence[Pin]
) -> list[Contender]:
    """Return what each toolchain alone becomes under pins: it runs what no pin gives to another.

    A search finds such covers only once the large partition beside the pinned one has a cost.

    Args:
        graph: The model.
        catalog: The toolchain instances.
        pins: The pins; a cover that breaks one of them nevertheless may not win.
    """
    covers = [pinned_cover(graph, catalog, pins, [k] * len(graph)) for k in _defaults(catalog)]
    return [cover for cover in covers if cover is not None]


def pinned_cover(
    graph: DataflowGraph, catalog: CandidateCatalog, pins: Sequence[Pin], places: Sequence[int]
) -> Contender | None:
    """Return the cover in which pinned operators are moved, and equal neighbours are one partition.

    Args:
        graph: The model.
        catalog: The toolchain instances.
        pins: The pins.
        places: The place of the source of each operator without the pins.

    Returns:
        The cover; None: a toolchain does not take what the pins give it, or there is no such cover.
    """
    owner: list[Hashable | None] = list(places)
    for pin in pins:
        for operator in pin.nodes:
            owner[operator] = _taker(catalog, pin, places[operator])
    if any(
        own is None or catalog.sources[cast(int, own)].refusal(graph, index) is not None
        for own, index in zip(owner, graph.operators, strict=True)
    ):
        return None
    cover = _regions(graph, catalog, owner)
    return None if isinstance(cover, str) else Contender(cover=cover)


def _defaults(catalog: CandidateCatalog) -> list[int]:
    """Return the places of the sources in their default configuration."""
    return [place for place, source in enumerate(catalog.sources) if not source.instance.config]


def _taker(catalog: CandidateCatalog, pin: Pin, base: int) -> int | None:
    """Return the source that runs pinned operators beside another; None: there is none.

    Args:
        catalog: The toolchain instances.
        pin: The pin.
        base: The place of the source that runs all else.
    """

    def is_named(number: int) -> bool:
        instance = catalog.sources[number].instance
        return pin.toolchain in (instance.toolchain, instance.id)

    if pin.kind == "never":
        others = [base, *_defaults(catalog)]
        return next((place for place in others if not is_named(place)), None)
    if pin.toolchain is None:
        return base
    every = [*_defaults(catalog), *range(len(catalog.sources))]
    return next(filter(is_named, every), None)


def _regions(
    graph: DataflowGraph, catalog: CandidateCatalog, owner: Sequence[Hashable | None]
) -> tuple[Candidate, ...] | str:
    """Return a cover in which equal neighbours are one partition; a text says why there is none.

    Args:
        graph: The model.
        catalog: The toolchain instances.
        owner: The place of the source of each operator.
    """
    cover = []
    for own, bits in merge_regions(graph, owner):
        operators = tuple(members(bits))
        if own is None:
            first = graph.nodes[operators[0]].onnx_nodes[0]
            return f"it puts parts of one node on several toolchains: {first}"
        instance = catalog.sources[cast(int, own)].instance
        cover.append(make_candidate(graph, instance, operators, rule="user"))
    return tuple(cover)
