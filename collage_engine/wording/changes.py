"""Compares two runs of one model: which nodes moved, and by how much their times differ."""

from __future__ import annotations

from collections import Counter

from collage_engine.records.answers import Comparison, NodeChange
from collage_engine.records.graph import GraphRecord
from collage_engine.records.placement import Partition, Run
from collage_engine.wording.figures import difference
from collage_engine.wording.layers import placement_differences


def compare_runs(a: Run, b: Run, graph: GraphRecord) -> Comparison:
    """Compare ``b`` with ``a``, ONNX node by ONNX node.

    A node's difference is known where it is a partition by itself in both runs: what a node takes
    within a larger partition was not measured.
    """
    before, after = _by_node(a), _by_node(b)
    owners = graph.node_of_operator
    parts = placement_differences(a.placement, b.placement) if a.placement and b.placement else []
    deltas = {
        operator: gap.delta_us
        for gap in parts
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
    counts, other_counts = (Counter(part.toolchain for part in _parts(run)) for run in (a, b))
    return Comparison(
        a=a.id,
        b=b.id,
        measured_us=(was, now),
        delta_us=gap.us - gap.other_us if gap is not None and gap.in_common else None,
        against=gap.text if gap is not None else "",
        nodes=tuple(changes),
        partitions=((len(_parts(a)), len(_parts(b))),),
        by_toolchain={
            name: (counts[name], other_counts[name]) for name in sorted(counts | other_counts)
        },
    )


def _parts(run: Run) -> tuple[Partition, ...]:
    return run.placement.partitions if run.placement else ()


def _by_node(run: Run) -> dict[int, Partition]:
    return {node: part for part in _parts(run) for node in part.nodes}
