"""Reads the note on an anchor, and schedules what follows it (bias, residual, activation).

The legalisation leaves a note on the block of an anchor, which says how it is to be scheduled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tvm import tirx
from tvm.s_tir import Schedule

from collage_engine.kernels.tir_builder import Index
from collage_engine.support.errors import ToolchainError
from collage_engine.support.typed import decode

OUT = "anchor_out"
"""The block that gives an anchor's result its shape and type."""
NOTE = "collage.note"
"""Key of the block's annotation that holds the note as JSON."""

Note = TypeVar("Note")


def note_on(function: tirx.PrimFunc, block: str, kind: type[Note]) -> Note | None:
    """Return the note on a block of a function; None where there is no such block."""
    schedule = Schedule(function)
    try:
        sblock = schedule.get_sblock(block)
    except Exception:  # TVM's own error class: there is no such block
        return None
    return decode(str(schedule.get(sblock).annotations[NOTE]), kind)


def epilogue(
    schedule: Schedule,
    own: tuple[str, ...],
    shape: tuple[int, ...],
    axes: Callable[..., tuple[Index, ...]],
) -> Any:
    """Return all that follows an anchor as one block with loops over the anchor's axes.

    Args:
        schedule: The schedule of the fused function, which is changed.
        own: The names of the anchor's own blocks, which stay.
        shape: The shape of the anchor's result.
        axes: A function from an index of the result to the indices of the block's loops.

    Raises:
        ToolchainError: The result becomes something of another shape, or there are several results.
    """
    block = _last(schedule, schedule.get_sblock(OUT))
    changed = True
    while changed:
        changed = False
        for producer in _producers(schedule, block):
            if str(schedule.get(producer).name_hint) in own:
                continue
            schedule.compute_inline(producer)
            changed = True
            break
    result_shape = tuple(int(e) for e in schedule.get(block).writes[0].source.shape)
    if result_shape != shape:
        raise ToolchainError(f"the anchor's result {shape} is turned into {result_shape}")
    index = [tirx.Var(f"i{i}", "int32") for i in range(len(shape))]
    schedule.transform_block_layout(block, tirx.IndexMap(index, list(axes(*index)), None))
    return block


def _last(schedule: Schedule, block: Any) -> Any:
    """Return the block to which all blocks behind this one lead."""
    waiting, ends = [block], {}
    while waiting:
        block = waiting.pop()
        consumers = schedule.get_consumers(block)
        waiting += consumers
        if not consumers:
            ends[str(schedule.get(block).name_hint)] = block
    if len(ends) > 1:
        raise ToolchainError("the anchor has several results")
    return next(iter(ends.values()))


def _producers(schedule: Schedule, block: Any) -> list[Any]:
    producers = []
    for producer in schedule.get_producers(block):
        producers += [producer, *_producers(schedule, producer)]
    return producers
