"""Schedules a product: slices in shared memory, tiles in registers or fragments.

What follows the product is done on the tile before it is written.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.epilogue import epilogue
from collage_engine.kernels.cuda.product.fragments import RESULT, intrinsics
from collage_engine.kernels.cuda.product.plan import FRAGMENT, PLAIN, WARP
from collage_engine.kernels.cuda.product.reference import AnnotatedProduct
from collage_engine.kernels.cuda.product.shared_memory import bind_blocks, fetch, pipeline, whole


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
        (fragments[0], names.load_a),
        (fragments[1], names.load_b),
        (store, names.store),
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
    schedule.tensorize(schedule.get_loops(first)[-2], names.fill)
    schedule.tensorize(schedule.get_loops(inner)[-3], names.multiply)
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
