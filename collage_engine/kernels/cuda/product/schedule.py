"""Schedules a product: slices in shared memory, tiles in registers or fragments.

What follows the product is done on the tile before it is written. While a slice is multiplied the
next one is on its way: it is read into registers first, and written to the other half of shared
memory when the multiplication is done (software pipeline).
"""

from __future__ import annotations

import math
from typing import Any

from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.epilogue import epilogue
from collage_engine.kernels.cuda.product.forms import AnnotatedProduct
from collage_engine.kernels.cuda.product.fragments import RESULT, SHARED, intrinsics
from collage_engine.kernels.cuda.product.plan import FRAGMENT, PLAIN, S8, WARP, widest
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


def plain(schedule: Schedule, product: AnnotatedProduct, last: Any) -> None:
    """Schedules a product on plain threads.

    Args:
        schedule: The schedule of the fused function, which is changed.
        product: The note on the product.
        last: The block of what follows the product.
    """
    tile = product.tile
    c = schedule.get_sblock("product_c")
    schedule.set_scope(c, 0, "local")
    s, m, n, k = schedule.get_loops(c)
    m0, m1, m2 = schedule.split(m, [None, tile.m // tile.thread[0], tile.thread[0]])
    n0, n1, n2 = schedule.split(n, [None, tile.n // tile.thread[1], tile.thread[1]])
    k0, k1 = schedule.split(k, [None, tile.k])
    schedule.reorder(s, m0, n0, m1, n1, k0, k1, m2, n2)
    thread = schedule.fuse(m1, n1)
    bind_blocks(schedule, s, m0, n0)
    schedule.bind(thread, "threadIdx.x")
    threads = [("threadIdx.x", tile.threads)]
    for operand in (0, 1):
        fetch(schedule, product, c, operand, k0, threads, turned=operand == 0)
    schedule.reverse_compute_at(last, thread)
    steps = int(schedule.get(k0).extent)
    first = schedule.decompose_reduction(c, k0)
    for loop in schedule.get_loops(first)[-2:]:
        schedule.unroll(loop)
    schedule.unroll(m2)
    schedule.unroll(n2)
    schedule.unroll(k1)
    pipeline(schedule, k0, steps)
    rows, columns = schedule.get_loops(last)[-2:]
    schedule.unroll(rows)
    (schedule.vectorize if whole(product, tile.thread[1]) else schedule.unroll)(columns)


def tensor(schedule: Schedule, product: AnnotatedProduct, last: Any) -> None:
    """Schedules a product on tensor cores.

    Args:
        schedule: The schedule of the fused function, which is changed.
        product: The note on the product.
        last: The block of what follows the product.
    """
    tile = product.tile
    names = intrinsics(tile.math)
    c = schedule.get_sblock("product_c")
    s, m, n, k = schedule.get_loops(c)
    m, m_in = schedule.split(m, [None, FRAGMENT])
    n, n_in = schedule.split(n, [None, FRAGMENT])
    k, k_in = schedule.split(k, [None, FRAGMENT])
    schedule.reorder(s, m, n, k, m_in, n_in, k_in)
    outer = schedule.blockize(m_in)
    per_warp = (tile.thread[0] // FRAGMENT, tile.thread[1] // FRAGMENT)
    m0, m1, m2 = schedule.split(m, [None, tile.m // tile.thread[0], per_warp[0]])
    n0, n1, n2 = schedule.split(n, [None, tile.n // tile.thread[1], per_warp[1]])
    k0, k1 = schedule.split(k, [None, tile.k // FRAGMENT])
    schedule.reorder(s, m0, n0, m1, n1, k0, k1, m2, n2)
    warp = schedule.fuse(m1, n1)
    bind_blocks(schedule, s, m0, n0)
    schedule.bind(warp, "threadIdx.y")
    threads = [("threadIdx.y", tile.threads // WARP), ("threadIdx.x", WARP)]
    for operand in (0, 1):
        fetch(schedule, product, outer, operand, k0, threads, turned=False)
    fragments = []
    for operand, scope in ((0, "wmma.matrix_a"), (1, "wmma.matrix_b")):
        fragment = schedule.cache_read(outer, operand, scope)
        schedule.compute_at(fragment, k1)
        fragments.append(fragment)
    shared = schedule.cache_write(outer, 0, RESULT)
    schedule.storage_align(shared, 0, -2, 16, 4)
    store = schedule.cache_write(outer, 0, "wmma.accumulator")
    schedule.reverse_compute_at(store, warp)
    # The copy that is left between shared memory and what follows is C itself.
    schedule.reverse_compute_at(shared, warp)
    schedule.reverse_compute_inline(last)
    init = schedule.decompose_reduction(outer, k0)
    pipeline(schedule, k0, int(schedule.get(k0).extent))

    for fragment, name in (
        (fragments[0], names["load_a"]),
        (fragments[1], names["load_b"]),
        (store, names["store"]),
    ):
        i, j = schedule.get_loops(fragment)[-2:]
        i0, i1 = schedule.split(i, [None, FRAGMENT])
        j0, j1 = schedule.split(j, [None, FRAGMENT])
        schedule.reorder(i0, j0, i1, j1)
        schedule.unroll(i0)
        schedule.unroll(j0)
        schedule.tensorize(i1, name)
    (inner,) = schedule.get_child_blocks(outer)
    (first,) = schedule.get_child_blocks(init)
    schedule.tensorize(schedule.get_loops(first)[-2], names["fill"])
    schedule.tensorize(schedule.get_loops(inner)[-3], names["multiply"])
    for loop in (m2, n2, k1):
        schedule.unroll(loop)

    rows, columns = schedule.get_loops(shared)[-2:]
    vector = 4 if whole(product, 4) else 1
    _, lane, inside = schedule.split(schedule.fuse(rows, columns), [None, WARP, vector])
    schedule.bind(lane, "threadIdx.x")
    if vector > 1:
        schedule.vectorize(inside)


def schedule_product(schedule: Schedule, annotated: AnnotatedProduct) -> None:
    """Schedules a function that holds a product.

    Raises:
        ToolchainError: The function holds more than one kernel can take in.
    """
    split = annotated.plan.split
    shape = annotated.out if split == 1 else (split, *annotated.out)
    last = epilogue(schedule, ("product_a", "product_b", "product_c"), shape, annotated.place)
    (plain if annotated.tile.math == PLAIN else tensor)(schedule, annotated, last)
