"""Says where the time of a placement goes: by layer, in running order, and what could be won.

It also counts the bytes of partitions and the rates that they achieve, and compares two runs of one
model: which nodes moved, and by how much their times differ. Every figure of time was
measured (``Placement.layers``): a layer that computes several nodes has one time, which is never
shared out among them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from collage_engine.records.answers import Comparison, NodeChange
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.graph import GraphRecord, ValueIndex
from collage_engine.records.operators import work_of_operators
from collage_engine.records.placement import (
    PROCESS_SHARE,
    LayerTime,
    Partition,
    Placement,
    Residual,
    Run,
    baseline_placement,
)
from collage_engine.wording.amounts import time_text, total
from collage_engine.wording.figures import difference, partition_us

MOST_PARTS = 10
"""Parts that are listed as what costs most; chosen: what an hour of work can look at."""


@dataclass(frozen=True)
class Span:
    """A layer in its place in the run, in microseconds from the begin."""

    begin_us: float
    end_us: float
    layer: LayerTime


def spans(placement: Placement) -> list[Span]:
    """Return the layers of a placement with their places in the run.

    A placement that was not profiled has one for each partition whose time is known.
    """
    layers = placement.layers or [
        LayerTime(name=part.candidate, us=us, partition=place, operators=part.nodes)
        for place, part in enumerate(placement.partitions)
        if (us := partition_us(placement, part)) is not None
    ]
    found, at = [], 0.0
    for layer in layers:
        begin = at + layer.gap_us
        at = begin + layer.us
        found.append(Span(begin, at, layer))
    return found


def folded(placement: Placement, families: Iterable[Sequence[Collection[int]]]) -> Placement:
    """Return a placement in which the layers of equal blocks are one layer on each toolchain.

    It takes as long as before: the one layer has the sum of their times, and stands at the first.

    Args:
        placement: A placement whose layers were timed.
        families: The operators of each of some equal blocks, for every set of such blocks.
    """
    home_of = {
        operator: (number, block)
        for number, blocks in enumerate(families)
        for block, members in enumerate(blocks)
        for operator in members
    }
    groups: dict[object, list[tuple[object, LayerTime]]] = {}
    for layer in placement.layers:
        part = None if layer.partition is None else placement.partitions[layer.partition]
        work = layer.operators or (part.nodes if part is not None else ())
        homes = {home_of.get(operator) for operator in work}
        home, key = homes.pop() if len(homes) == 1 else None, object()
        if home is not None and part is not None:
            key = home[0], part.instance, part.device
        groups.setdefault(key, []).append((home, layer))
    layers = [layer for held in groups.values() for layer in _summed(held)]
    return msgspec.structs.replace(placement, layers=tuple(layers))


def _summed(held: Sequence[tuple[object, LayerTime]]) -> list[LayerTime]:
    """Return one layer for those of several blocks, which are given with their blocks."""
    times: dict[object, float] = {}
    for block, layer in held:
        times[block] = times.get(block, 0.0) + layer.us
    layers = [layer for _, layer in held]
    if len(times) < 2:
        return layers
    low, high = time_text(min(times.values())), time_text(max(times.values()))
    whole = msgspec.structs.replace(
        layers[0],
        name=f"{len(times)} equal blocks, {low} to {high} each",
        us=sum(times.values()),
        gap_us=sum(layer.gap_us for layer in layers),
        operators=tuple(sorted({k for layer in layers for k in layer.operators})),
        blocks=len(times),
    )
    return [whole]


def by_layer(placement: Placement) -> Placement:
    """Return a placement whose partitions are the layers that were timed; without times itself.

    Layers that compute parts of one node are one. What a runtime inserts between layers is left
    out: the partitions and :func:`outside_us` add up to the measured time.
    """
    from networkx.utils import UnionFind

    timed = [one for one in placement.layers if one.partition is not None and one.operators]
    if not timed:
        return placement
    joined: UnionFind[int] = UnionFind()
    for layer in timed:
        joined.union(*layer.operators)
    groups: dict[int, list[LayerTime]] = {}
    for layer in timed:  # in the order of their last layers
        key = joined[layer.operators[0]]
        groups[key] = [*groups.pop(key, []), layer]
    alone = Counter(held[-1].partition for held in groups.values())
    layered = []
    for number, held in enumerate(groups.values()):
        place = held[-1].partition
        assert place is not None
        if alone[place] == 1:  # what a runtime inserts there is for these nodes only
            us = sum(one.us for one in placement.layers if one.partition == place)
        else:
            us = sum(one.us for one in held)
        layered.append(
            msgspec.structs.replace(
                placement.partitions[place],
                id=f"{placement.partitions[place].id}.{number}",
                nodes=tuple(sorted({k for one in held for k in one.operators})),
                onnx_nodes=(),
                estimated_us=us,
                in_place_us=us,
                takes={},
                gives={},
                node_count=0,
            )
        )
    return msgspec.structs.replace(placement, partitions=tuple(layered), layers=())


def outside_us(placement: Placement) -> float | None:
    """Return what a run takes besides the partitions of a placement, or of :func:`by_layer`.

    These are conversions and what passes between calls, and for layers also what runtimes do
    outside of them. None where it is not known.
    """
    inside_us = total(part.in_place_us for part in placement.partitions)
    if placement.measured_us is None or (placement.partitions and inside_us is None):
        return None
    return max(0.0, placement.measured_us - (inside_us or 0.0))


def kernels_outside(placement: Placement) -> list[Residual]:
    """Return what runs outside of every partition; what has one name is added up."""
    found: dict[str, list[float]] = {}
    for layer in placement.layers:
        if layer.partition is None:
            found.setdefault(layer.name, []).append(layer.us)
    return [Residual(name=name, calls=len(us), us=sum(us)) for name, us in found.items()]


def layer_of(placement: Placement, operator: int) -> Partition | None:
    """Return the layer that computes an operator, as a partition; None: none was timed."""
    layered = by_layer(placement)
    if layered is placement:
        return None
    return next((part for part in layered.partitions if operator in part.nodes), None)


def layer_text(placement: Placement, layer: Partition) -> str:
    """Return ``12.3 µs, 4.1 % of the run``."""
    us, whole_us = layer.in_place_us or 0.0, placement.measured_us
    share = f", {100 * us / whole_us:.2g} % of the run" if whole_us else ""
    return f"{time_text(us)}{share}"


@dataclass(frozen=True)
class PartDifference:
    """The times of a part that two placements cut out, which is whole layers or partitions."""

    operators: frozenset[int]
    us: float
    other_us: float

    @property
    def delta_us(self) -> float:
        """Return what the other placement takes more, in microseconds."""
        return self.other_us - self.us

    @property
    def change(self) -> str:
        """Return ``gained`` or ``lost`` against the other placement, or ``same`` within noise."""
        if abs(self.delta_us) <= PROCESS_SHARE * max(self.us, self.other_us):
            return "same"
        return "gained" if self.delta_us > 0 else "lost"


def placement_differences(one: Placement, other: Placement) -> list[PartDifference]:
    """Return the times of each smallest part of the model that two placements cut out.

    Such a part consists of whole partitions in both, or of layers where those of both were timed;
    it is the whole model where either has one partition only. The times are those in the model
    where both were profiled, else the expected ones; parts without times are left out.
    """
    from networkx.utils import UnionFind

    if one.layers and other.layers:
        one, other = by_layer(one), by_layer(other)
    sides = one.partitions, other.partitions
    profiled = all(part.in_place_us is not None for part in (*sides[0], *sides[1]))
    joined: UnionFind[int] = UnionFind()
    for part in (*sides[0], *sides[1]):
        joined.union(*part.nodes)
    times: dict[int, tuple[list[float | None], list[float | None]]] = {}
    for side, parts in enumerate(sides):
        for part in parts:
            us = part.in_place_us if profiled else part.estimated_us
            times.setdefault(joined[part.nodes[0]], ([], []))[side].append(us)
    held = [{k for part in parts for k in part.nodes} for parts in sides]
    found = []
    for operators in joined.to_sets():
        us, other_us = map(total, times[joined[next(iter(operators))]])
        if us is None or other_us is None or not operators <= held[0] & held[1]:
            continue
        # Runtimes count in whole microseconds: a time of none is not known.
        if not profiled or (us and other_us):
            found.append(PartDifference(frozenset(operators), us, other_us))
    return found


@dataclass(frozen=True)
class Winnable:
    """A part of a placement that costs much, and what another toolchain is known to take."""

    layer: Partition
    us: float
    """What it takes, in microseconds."""
    rival: str | None
    """The toolchain instance that is known to take the least for just these operators."""
    won_us: float | None
    """By how many microseconds the rival is cheaper, at least 0; None: there is no rival."""


def left_to_win(
    placement: Placement,
    candidates: Mapping[str, CandidateRecord],
    run: Run | None,
    operators: int,
) -> list[Winnable]:
    """Return the parts of a placement, the dearest first, with what each could win.

    Args:
        placement: The placement.
        candidates: The candidates of the model, by id, with what they are known to cost in it.
        run: The run that timed it: layers of whole models that it timed, too, are looked at.
        operators: How many operators the model has.
    """
    layered = by_layer(placement)
    dearest = [(p.in_place_us, p) for p in layered.partitions if p.in_place_us is not None]
    dearest.sort(key=lambda timed: -timed[0])
    known: dict[frozenset[int], dict[str, float]] = {frozenset(p.nodes): {} for _, p in dearest}
    for candidate in candidates.values():
        taken = known.get(frozenset(candidate.nodes))
        if taken is not None and candidate.cost.us is not None:
            taken[candidate.instance.id] = min(
                candidate.cost.us, taken.get(candidate.instance.id, math.inf)
            )
    alone = [base for base in run.baselines if base.kind == "whole-model"] if run else []
    for other in (baseline_placement(base, candidates, operators) for base in alone):
        if other is None or not other.layers:
            continue
        for found in placement_differences(layered, by_layer(other)):
            if found.operators in known:  # it was timed in the model, as the placement was
                known[found.operators][other.partitions[0].instance] = found.other_us
    parts = []
    for us, part in dearest:
        rivals_us = known[frozenset(part.nodes)]
        rivals_us.pop(part.instance, None)
        name = min(rivals_us, key=rivals_us.__getitem__, default=None)
        parts.append(Winnable(part, us, name, max(0.0, us - rivals_us[name]) if name else None))
    return parts


@dataclass(frozen=True, kw_only=True)
class PartitionFigures:
    """The bytes of the values that a partition reads, writes and holds, its time and its rates."""

    partition: Partition
    us: float | None
    """What the partition takes, in µs (``partition_us``)."""
    gflops: float | None
    """The GFLOP/s that its convolutions and products achieve; None: its time is not known."""
    gigabytes_per_s: float | None
    """The GB/s that it achieves, likewise."""
    weights: int
    inputs: int
    outputs: int
    inside: int
    """Bytes of the values between its operators."""


def partition_figures(graph: GraphRecord, placement: Placement) -> list[PartitionFigures]:
    """Return the bytes, the time and the operations of each partition of a placement.

    Args:
        graph: The dataflow graph.
        placement: A placement of it.
    """
    work, readers = work_of_operators(graph), dict[ValueIndex, set[int]]()
    for node in graph.nodes:
        for index in node.inputs:
            readers.setdefault(index, set()).add(node.index)

    def count(values: Iterable[ValueIndex]) -> int:
        return sum(graph.values[index].type.bytes for index in values)

    figures = []
    for part in placement.partitions:
        operators = set(part.nodes)
        nodes = [graph.nodes[operator] for operator in operators]
        made = {index for node in nodes for index in node.outputs}
        read = {index for node in nodes for index in node.inputs}
        out = {i for i in made if i in graph.outputs or readers.get(i, set()) - operators}
        weights = {i for i in read if graph.values[i].constant}
        us, moved_bytes = partition_us(placement, part), count(read - made) + count(out)
        operations = sum(work[number].operations for number in part.nodes)
        figures.append(
            PartitionFigures(
                partition=part,
                us=us,
                gflops=operations / us / 1e3 if us else None,
                gigabytes_per_s=moved_bytes / us / 1e3 if us else None,
                weights=count(weights),
                inputs=count(read - made - weights),
                outputs=count(out),
                inside=count(made - out),
            )
        )
    return figures


def compare_runs(a: Run, b: Run, graph: GraphRecord) -> Comparison:
    """Compare ``b`` with ``a``, ONNX node by ONNX node.

    A node's difference is known where it is a partition by itself in both runs: what a node takes
    within a larger partition was not measured.
    """
    parts, other_parts = (run.placement.partitions if run.placement else () for run in (a, b))
    before = {node: part for part in parts for node in part.nodes}
    after = {node: part for part in other_parts for node in part.nodes}
    owners = graph.node_of_operator
    gaps = placement_differences(a.placement, b.placement) if a.placement and b.placement else []
    deltas = {
        operator: gap.delta_us
        for gap in gaps
        if len({owners[operator] for operator in gap.operators}) == 1
        for operator in gap.operators
    }
    firsts = {owners[operator]: operator for operator in reversed(range(len(owners)))}
    changes = []
    for node in sorted(firsts.values()):
        old, new = before.get(node), after.get(node)
        old_name, new_name = (part.instance if part else None for part in (old, new))
        regrouped = old is not None and new is not None and old.nodes != new.nodes
        changes.append(
            NodeChange(
                node=node,
                change="moved" if old_name != new_name else "regrouped" if regrouped else "same",
                before=old_name,
                after=new_name,
                delta_us=deltas.get(node),
            )
        )
    was, now = (run.placement.measured_us if run.placement else None for run in (a, b))
    gap = difference(b.placement, b, a.placement, a)
    counts, other_counts = (Counter(part.toolchain for part in of) for of in (parts, other_parts))
    return Comparison(
        a=a.id,
        b=b.id,
        measured_us=(was, now),
        delta_us=gap.us - gap.other_us if gap is not None and gap.in_common else None,
        against=gap.text if gap is not None else "",
        nodes=tuple(changes),
        partitions=((len(parts), len(other_parts)),),
        by_toolchain={
            name: (counts[name], other_counts[name]) for name in sorted(counts | other_counts)
        },
    )
