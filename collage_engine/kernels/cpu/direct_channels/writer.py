"""Writes the loops of a convolution with output channels in the vector lanes.

For data with channels last, and for small channels-first images. The weight is packed
[groups, blocks, chunks, *kernel, channels of the chunk, block] so that a step of the reduction
reads one contiguous row of it; a register tile is some positions by one block of channels.
Products with a packed operand are written the same way: rows are positions.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.shape import ConvShape, Prepared, prepare
from collage_engine.kernels.cpu.direct_channels.channel_tiles import ChannelTiles
from collage_engine.kernels.cpu.direct_channels.chunked_sums import by_chunks
from collage_engine.kernels.cpu.direct_channels.plan import ChannelsPlan
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.tile_choice import spans
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.tir_builder import Index, Stmt, int64, seq


def write(shape: ConvShape, plan: ChannelsPlan, epilogue: Epilogue, context: Context) -> Stmt:
    """Returns the loops of a convolution, its data made ready where that is needed."""
    if turns_by_group(shape, plan, epilogue, context):
        # Each group of positions is turned where it is used, so it stays in the caches.
        nothing = Prepared(None, shape.ci, shape.size, None)
        return by_chunks(ChannelTiles(shape, plan, epilogue, context, nothing))
    return write_prepared(shape, plan, epilogue, context)


def write_prepared(shape: ConvShape, plan: ChannelsPlan, epilogue: Any, context: Context) -> Stmt:
    """Returns the same, all data made ready first.

    ``epilogue`` offers what an ``Epilogue`` does.
    """
    prepared = prepare(shape, context, turn=True)
    tiles = ChannelTiles(shape, plan, epilogue, context, prepared)
    alone = tiles.chunks == 1 and (shape.channels_last or not tiles.turns_back())
    return seq(prepared.loops, in_registers(tiles) if alone else by_chunks(tiles))


def turns_by_group(
    shape: ConvShape, plan: ChannelsPlan, epilogue: Epilogue, context: Context
) -> bool:
    """Tells whether channels-first data is made channels last group by group."""
    lanes = context.cpu.lanes("float32")
    half_l2 = context.cpu.l2_bytes // 2
    stays = 4 * prod(shape_of(shape.weight)) <= half_l2 < 4 * shape.ci * prod(shape.size)
    return (
        not shape.channels_last
        and shape.pointwise
        and all(s == 1 for s in shape.strides)
        and shape.groups == 1
        and shape.ci % lanes == 0
        and lanes >= 4
        and (plan.turn == "group" or (plan.turn is None and stays))
        and epilogue.collapsed(2, len(shape.out)) is not None
    )


def in_registers(tiles: ChannelTiles) -> Stmt:
    """Returns loops in which each tile's sums stay in registers until they are finished."""
    (rows, columns), (height, width) = tiles.image, tiles.tile
    statements = []
    for count_r, first_r, h in spans(rows, height):
        for count_c, first_c, w in spans(columns, width):

            def body(
                n: Index,
                lead: Any,
                g: Index,
                b: Index,
                i: Index,
                j: Index,
                h: int = h,
                w: int = w,
                first_r: int = first_r,
                first_c: int = first_c,
            ) -> Stmt:
                corner = (int64(i) * h + first_r, int64(j) * w + first_c)

                def finish(position: tuple[Index, Index], lane: Index, value: Expr) -> Stmt:
                    channel = g * tiles.co + b * tiles.block + lane
                    return tiles.give(n, tiles.place(lead, *position), channel, value)

                return tiles.block_columns(
                    b,
                    lambda kept: tiles.product_tile(
                        n, lead, g, b, int64(0), corner, (h, w), finish, kept
                    ),
                )

            statements.append(tiles.spread((count_r, count_c), body))
    return seq(*statements)
