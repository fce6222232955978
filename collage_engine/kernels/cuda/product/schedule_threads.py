"""Schedules a product on plain threads, each of which keeps a small square of C in registers."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.product.note import AnnotatedProduct
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
