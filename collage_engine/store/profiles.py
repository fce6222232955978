"""A runtime's profile as a run of a session, so that everything that shows runs shows it too.

Its partitions are the runtime's layers, over the operators of the ONNX nodes that they compute. A
layer names one node at least. What no layer names goes to a neighbour that fuses such nodes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from collage_engine.records.graph import GraphRecord
from collage_engine.records.placement import (
    Baseline,
    DiagnosedNode,
    Diagnosis,
    Layer,
    LayerTime,
    Partition,
    Placement,
    Profile,
    Run,
)
from collage_engine.records.toolchain import ToolchainState
from collage_engine.store.document import Document
from collage_engine.wording.layers import kernels_outside, placement_differences

FELL_BACK = "instead"
"""Key in a partition's configuration of what ran it instead of what the runtime prefers."""
UNNAMED = "no layer"
"""Id of the candidate, a layer's otherwise, of the operators that no layer names."""


def layers_of_operators(
    graph: GraphRecord, layers: Sequence[Layer]
) -> tuple[list[int | None], list[int | None]]:
    """Find the layer that computes each operator.

    Returns:
        For each operator the place of the layer that computes it; None: none says so. And for each
        layer the place that its operators have: that of the first layer, where several compute
        parts of one operator; None: it names no node.
    """
    calls = graph.nodes
    nodes = {name for call in calls for name in call.onnx_nodes}
    named: dict[str, list[int]] = {}
    for k, call in enumerate(calls):
        for name in (*call.onnx_nodes, *(value.onnx_value or "" for value in call.results)):
            named.setdefault(name, []).append(k)
    layer_of: list[int | None] = [None] * len(calls)
    homes: list[int | None] = []
    for place, layer in enumerate(layers):
        operators = graph.whole_nodes(k for name in layer.nodes for k in named.get(name, ()))
        before = [layer_of[k] for k in operators if layer_of[k] is not None]
        homes.append(before[0] if before else place if operators else None)
        for k in operators:
            if layer_of[k] is None:
                layer_of[k] = homes[place]
    absorbs = ["before" if nodes.isdisjoint(layer.nodes) else layer.absorbs for layer in layers]
    _add_fused(graph, layer_of, absorbs)
    return layer_of, homes


def _add_fused(graph: GraphRecord, layers: list[int | None], absorbs: Sequence[str]) -> None:
    """Give operators that no layer names to the layers that fused them, as far as these say so."""
    sources = [made_by[::-1] for made_by in graph.operator_inputs()]
    readers: list[list[int]] = [[] for _ in sources]
    for k, made_by in enumerate(sources):
        for source in made_by:
            readers[source].append(k)
    for k, call in enumerate(graph.nodes):
        home = layers[sources[k][0]] if sources[k] else None
        is_free = layers[k] is None and call.kind != "anchor"
        if is_free and home is not None and absorbs[home] == "after":
            layers[k] = home
    for k in reversed(range(len(sources))):
        homes = {layers[reader] for reader in readers[k]}
        home = homes.pop() if len(homes) == 1 else None
        if layers[k] is None and home is not None and absorbs[home] == "before":
            layers[k] = home


def run_of_profile(
    document: Document, profile: Profile, about: ToolchainState, threads: int = 0
) -> Run:
    """Return the run that shows a profile.

    Args:
        document: The model's document.
        profile: What the runtime said.
        about: How the runtime is called and drawn.
        threads: Threads of the runtime; 0: they are not known.
    """
    graph, model = document.graph, document.model
    owners, homes = layers_of_operators(graph, profile.layers)
    spent_us: dict[int | None, float] = {}
    for layer, home in zip(profile.layers, homes, strict=True):
        if home is not None and layer.us is not None:
            spent_us[home] = spent_us.get(home, 0.0) + layer.us
    members: dict[int | None, list[int]] = {}
    for operator, place_or_none in enumerate(owners):
        members.setdefault(place_or_none, []).append(operator)
    partitions: list[Partition] = []
    for place, operators in members.items():
        own = None if place is None else profile.layers[place]
        names = [name for k in operators for name in graph.nodes[k].onnx_nodes]
        part_us = 0.0 if own is None else spent_us.get(place)
        partitions.append(
            Partition(
                id=f"p{len(partitions)}",
                candidate=f"layer {own.name}: {own.kernel or own.kind}" if own else UNNAMED,
                toolchain=profile.toolchain,
                config={FELL_BACK: own.fell_back} if own is not None and own.fell_back else {},
                nodes=tuple(operators),
                onnx_nodes=tuple(dict.fromkeys(names)),
                estimated_us=part_us,
                in_place_us=part_us,
                node_count=graph.count_nodes(operators),
            )
        )
    times = [layer.us for layer in profile.layers if layer.us is not None]
    number = {place: k for k, place in enumerate(members)}
    layers = [
        LayerTime(
            name=layer.kind or layer.name,
            us=layer.us or 0.0,
            partition=number.get(home) if home is not None else None,
            operators=tuple(members.get(home, ())) if home is not None else (),
        )
        for layer, home in zip(profile.layers, homes, strict=True)
        if layer.us is not None or home is None
    ]
    placement = Placement(
        partitions=tuple(partitions),
        estimated_us=sum(times) if times else None,
        measured_us=profile.us or None,
        layers=tuple(layers),
    )
    title = about.title or profile.toolchain
    name = f"{title}'s profile"
    earlier = sum(run.of_profile and run.winner == profile.toolchain for run in document.runs)
    return Run(
        id="p" + uuid.uuid4().hex[:8],
        name=f"{name} {earlier + 1}" if earlier else name,
        model={"path": model.path, "sha256": model.sha256, "nodes": model.nodes, "folded": []},
        target="cpu",
        warnings=list(profile.warnings),
        threads=threads,
        toolchains=[about],
        placement=placement,
        baselines=[
            Baseline(name=profile.toolchain, kind="whole-model", measured_us=profile.us or None)
        ],
        winner=profile.toolchain,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        of_profile=True,
        note=f"what {title} says of its own layers",
    )


def diagnosis(graph: GraphRecord, profiled: Run, placed: Run | None) -> Diagnosis:
    """Return a profile by ONNX node, beside a placement.

    Args:
        graph: The model's graph.
        profiled: The run of the profile.
        placed: The run whose placement it is compared with; None: none.
    """
    assert profiled.placement is not None
    placement = placed.placement if placed is not None else None
    chosen = placement.partitions if placement else ()
    where = {k: part.instance for part in chosen for k in part.nodes}
    differing = placement_differences(profiled.placement, placement) if placement else []
    delta = {each.operators: each.delta_us for each in differing}
    rows = []
    for part in profiled.placement.partitions:
        device = part.config.get(FELL_BACK, "")
        seen = part.candidate != UNNAMED
        rows.append(
            DiagnosedNode(
                onnx_nodes=part.onnx_nodes,
                state="not seen" if not seen else "fell back" if device else "ran",
                us=part.in_place_us,
                device=device,
                placed_on=tuple(dict.fromkeys(where[k] for k in part.nodes if k in where)),
                delta_us=delta.get(frozenset(part.nodes)),
            )
        )
    alone = [b for b in (placed.baselines if placed else ()) if b.name == profiled.winner]
    return Diagnosis(
        toolchain=profiled.winner,
        run=profiled.id,
        layers_us=profiled.placement.estimated_us,
        measured_us=profiled.placement.measured_us,
        nodes=tuple(sorted(rows, key=lambda row: -(row.us or 0.0))),
        inserted=tuple(kernels_outside(profiled.placement)),
        alone_us=alone[0].measured_us if alone else None,
        placement_us=placement.measured_us if placement else None,
        placement=placed.id if placed else "",
        warnings=tuple(profiled.warnings),
    )
