"""Has one cuDNN engine compute attention, which ``runtime/attention.py`` recognises."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.toolchains.cudnn.program import CudnnProgram, View
from collage_engine.toolchains.runtime.attention import Attention

HALF = ("float16", "bfloat16")
HEAD_MULTIPLE = 8
"""Elements of a head are a multiple of it (cuDNN developer guide, scaled dot product attention)."""
LARGEST_HEAD = 256
"""Elements of a head, at most (the same page)."""


def refused(graph: DataflowGraph, found: Attention) -> str | None:
    """Return why cuDNN has no engine for an attention."""
    kind = graph.nodes[found.q.node].type.dtype
    if kind not in HALF:
        return f"attention: cuDNN has engines for half precision only, not {kind}"
    for operand in (found.q, found.v):
        size = operand.sizes(graph)[3]
        if size % HEAD_MULTIPLE or size > LARGEST_HEAD:
            return f"attention: heads of {size} elements"
    return None


def emit(program: CudnnProgram, found: Attention) -> None:
    """Append the step of an attention.

    A mask is added after scaling, as in the pattern.
    """
    graph = program.graph
    q, k, v = (
        program.view(operand.node).permuted(operand.axes) for operand in (found.q, found.k, found.v)
    )
    y = program.result(found.root).permuted(found.result)
    fields = {}
    mask: View | None = None
    if found.mask is not None:
        mask = program.view(found.mask)
    elif found.selected:
        mask = program.constant(found.added_mask(program.constants, q.dtype, program.dry))
    if mask is not None:
        fields["bias"] = mask.widened(4).as_json()
    node = graph.nodes[found.match.bindings["product"]]
    program.emit(
        "attention",
        node.name or f"attention {found.root}",
        q=q.as_json(),
        k=k.as_json(),
        v=v.as_json(),
        y=y.as_json(),
        scale=found.scale(program.constants),
        **fields,
    )
