"""Has one kernel of CUTLASS compute attention, which ``runtime/attention.py`` recognises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.toolchains.cutlass import headers
from collage_engine.toolchains.cutlass.families import WHOLE, Family
from collage_engine.toolchains.cutlass.steps import LARGEST, Generator
from collage_engine.toolchains.runtime.attention import Attention
from collage_engine.toolchains.runtime.per_axis import row_major

HEADS_INSIDE = (0, 2, 1, 3)
"""Order of axes of a result that the kernel can write: [batch, queries, heads, size]."""


def refused(graph: DataflowGraph, found: Attention) -> str | None:
    """Returns why the kernel cannot compute an attention; None where it can."""
    kind = graph.nodes[found.q.node].type.dtype
    if kind not in WHOLE:
        return f"attention: CUTLASS's kernel takes no {kind}"
    if headers.attention() is None:
        return "attention: CUTLASS's headers came without its example 41 (package nvidia-cutlass)"
    whole = WHOLE[kind]
    sizes = [found.q.sizes(graph)[3], found.v.sizes(graph)[3]]
    if found.mask is not None or found.selected:
        sizes.append(found.k.sizes(graph)[2])
    if any(size % whole for size in sizes):
        return f"attention: heads or masks of no multiple of {whole} elements"
    if _folded(graph, found) is None:
        return "attention: heads of several batches, in an order that no step leads through"
    return None


def emit(g: Generator, found: Attention) -> None:
    """Appends the step of an attention.

    Where the result's heads are the outer axis, every head counts as a batch.
    """
    folded = _folded(g.graph, found)
    if folded is None:
        raise UnsupportedError("attention: heads of several batches")
    node = g.graph.nodes[found.match.bindings["product"]]
    kind = node.type.dtype
    sizes, steps = folded
    fields: dict[str, Any] = {
        "a": g.plain(found.q.node),
        "b": g.plain(found.k.node),
        "v": g.plain(found.v.node),
        "scale": found.scale(g.places.constants),
        **sizes,
        **steps,
    }
    if found.mask is not None:
        fields["c"] = g.plain(found.mask)
    elif found.selected:
        fields["c"] = g.places.constant(found.added_mask(g.places.constants, kind, g.places.dry))
    g.step("attention", node, Family("attention", kind, "rows", "none", WHOLE[kind]), fields)
    g.steps[-1]["d"] = g.plain(found.root, write=True)


def _folded(graph: DataflowGraph, found: Attention) -> tuple[dict[str, int], dict[str, int]] | None:
    """Returns the sizes and strides for the kernel; None where it cannot write such a result."""
    batch, heads, queries, size = found.q.sizes(graph)
    keys, size_v = found.k.sizes(graph)[2], found.v.sizes(graph)[3]
    steps = {}
    for name, operand in (("q", found.q), ("k", found.k), ("v", found.v)):
        dense = row_major(graph.nodes[operand.node].type.shape)
        steps[name] = [dense[operand.axes[i]] for i in (2, 1, 0)]
    index = found.mask if found.mask is not None else found.match.bindings.get("keep")
    shape: Sequence[int] = () if index is None else graph.nodes[index].type.shape
    wide = (1,) * (4 - len(shape)) + tuple(shape)
    steps["mask"] = [0 if wide[i] == 1 else row_major(wide)[i] for i in (2, 1, 0)]
    if found.result not in (HEADS_INSIDE, (0, 1, 2, 3)):
        return None
    if found.result == (0, 1, 2, 3) and heads > 1 and queries > 1:
        for each in steps.values():  # row, head, batch
            if batch > 1 and each[2] != heads * each[1]:
                return None
            each[1:] = [0, each[1]]
        batch, heads = batch * heads, 1
    sizes = {
        "batch": batch,
        "heads": heads,
        "queries": queries,
        "keys": keys,
        "head_size": size,
        "head_size_v": size_v,
    }
    flat = {
        f"{name}_{what}": step
        for name, each in steps.items()
        for what, step in zip(("row", "head", "batch"), each, strict=True)
    }
    largest = max(*flat.values(), batch * heads * queries * max(size, size_v))
    return (sizes, flat) if largest < LARGEST and max(batch, heads) < 1 << 16 else None
