"""Brings slices of a product's operands to shared memory.

While a slice is multiplied the next one is on its way: it is read into registers first, and
written to the other half of shared memory when the multiplication is done (software pipeline).
"""

from __future__ import annotations

import math
from typing import Any

from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.product.fragments import SHARED
from collage_engine.kernels.cuda.product.plan import FRAGMENT, PLAIN, S8, widest
from collage_engine.kernels.cuda.product.reference import AnnotatedProduct
from collage_engine.kernels.tir_builder import Index

_REGISTERS = "tirx.manifest_shared_memory_local_stage"
"""Block annotation: a copy to shared memory goes through registers, as two steps."""


def fetch(
    schedule: Schedule,
    product: AnnotatedProduct,
    consumer: Any,
    operand: int,
    at: Index,
    threads: Any,
    turned: bool,
) -> None:
    """Copy a slice of A or B to shared memory, all threads together.

    Args:
        schedule: The schedule, which is changed.
        product: The note on the product.
        consumer: The block that reads the slice.
        operand: 0 for A, 1 for B.
        at: The loop in which the slice is copied.
        threads: The thread axes and their extents.
        turned: Whether A is stored by k, so that a thread's rows are neighbours.
    """
    tile = product.tile
    copy = schedule.cache_read(consumer, operand, SHARED[tile.math])
    (source,) = schedule.get_producers(copy)
    schedule.compute_at(copy, at)
    schedule.compute_inline(source)
    if turned:
        schedule.transform_layout(copy, ("write", 0), lambda s, m, k: (s, k, m))
    if tile.math == S8:
        # Fragments lie one after the other, since each has to begin at a multiple of 32 bytes.
        schedule.transform_layout(
            copy, ("write", 0), lambda s, i, j: (s, j // FRAGMENT, i, j % FRAGMENT)
        )
    row, column = schedule.get_loops(copy)[-2:]
    by_k = operand == 0 and tile.math == PLAIN and product.kind == "conv"
    if by_k:
        schedule.reorder(column, row)  # neighbouring threads read neighbouring rows
        row, column = column, row
    width = tile.n if operand else (tile.m if by_k else tile.k)
    stored = max(tile.item, product.item)  # float32 may be rounded on the way
    # Rows in memory and rows of the tile are whole vectors.
    vector = math.gcd(widest(stored), product.vectors[operand], width)
    if turned and not by_k:
        vector = 1  # written down a column
    vector = min(vector, max(1, (tile.n if operand else tile.m) * tile.k // tile.threads))
    fused = schedule.fuse(row, column)
    sizes = [None, *(count for _, count in threads), vector]
    _, *bound, inner = schedule.split(fused, sizes)
    for loop, (name, _) in zip(bound, threads, strict=True):
        schedule.bind(loop, name)
    if vector > 1:
        schedule.vectorize(inner)
    if tile.math not in (PLAIN, S8):
        schedule.storage_align(copy, 0, -2, 32, 16 // tile.item)
    schedule.annotate(copy, _REGISTERS, 1)


def pipeline(schedule: Schedule, loop: Any, steps: int) -> None:
    """Has the steps of a slice overlap: read A, write A, read B, write B, multiply."""
    if steps < 2:
        return
    schedule.annotate(loop, "software_pipeline_stage", [0, 0, 0, 0, 1])
    schedule.annotate(loop, "software_pipeline_order", [0, 3, 1, 4, 2])


def bind_blocks(schedule: Schedule, s: Any, m0: Any, n0: Any) -> None:
    """Binds the loops over tiles to blocks of threads.

    Columns vary fastest, so that blocks that run together share rows of A.
    """
    schedule.bind(s, "blockIdx.z")
    schedule.bind(m0, "blockIdx.y")
    schedule.bind(n0, "blockIdx.x")


def whole(product: AnnotatedProduct, vector: int) -> bool:
    """Return whether every row of the result consists of whole vectors that no bound cuts."""
    n = product.sizes.n
    row = n // product.out[0] if product.kind == "conv" else n
    return n % vector == 0 and row % vector == 0
