"""Schedules a convolution with few channels a group.

A block of threads reads a patch of the image into shared memory, and a thread computes some pixels
of some rows in its registers. What follows the convolution is done there before results are stored.
"""

from __future__ import annotations

import math

from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.direct.reference import NotedDirect
from collage_engine.kernels.cuda.epilogue import epilogue
from collage_engine.kernels.cuda.product.plan import widest

UNROLLED = 49
"""Taps up to which all loops over taps are unrolled; above it only the loop along x is. Chosen:
7 × 7."""


def schedule_direct(schedule: Schedule, noted: NotedDirect) -> None:
    """Schedules a function that holds such a convolution.

    Raises:
        ToolchainError: The function holds more than one kernel can take in.
    """
    last = epilogue(schedule, ("direct_a", "direct_c"), noted.out, noted.place)
    shape, plan = noted.shape, noted.plan
    c = schedule.get_sblock("direct_c")
    a = schedule.get_sblock("direct_a")
    schedule.set_scope(c, 0, "local")
    schedule.set_scope(a, 0, "shared")
    n, g, r, z, y, x, channel, tap_z, tap_y, tap_x = schedule.get_loops(c)
    g0, g1 = schedule.split(g, [None, plan.groups])
    r0, r1 = schedule.split(r, [None, plan.row])
    y0, y1, y2 = schedule.split(y, [None, plan.down, plan.high])
    x0, x1, x2 = schedule.split(x, [None, plan.across, plan.wide])
    c0, c1 = schedule.split(channel, [None, plan.deep])
    inside = (c1, tap_z, tap_y, tap_x, r1, y2, x2)
    schedule.reorder(y0, x0, g0, n, z, g1, r0, y1, x1, c0, *inside)
    schedule.bind(schedule.fuse(y0, x0), "blockIdx.x")
    schedule.bind(g0, "blockIdx.y")
    schedule.bind(schedule.fuse(n, z), "blockIdx.z")
    thread = schedule.fuse(g1, r0, y1, x1)
    schedule.bind(thread, "threadIdx.x")
    threads = plan.threads(shape)
    filters = schedule.cache_read(c, 1, "shared")
    outside = len(schedule.get_loops(c)) - len(inside)
    for copy, vector in (
        (a, plan.vector(shape)),
        (filters, math.gcd(shape.rows, widest(shape.item))),
    ):
        schedule.compute_at(copy, c0)
        *outer, last_axis = schedule.get_loops(copy)[outside:]
        # Vectors come first: no test and no address may depend on the place in a vector.
        across, inner = schedule.split(last_axis, [None, vector])
        _, bound = schedule.split(schedule.fuse(*outer, across), [None, threads])
        schedule.bind(bound, "threadIdx.x")
        if vector > 1:
            schedule.vectorize(inner)
    schedule.reverse_compute_at(last, thread, preserve_unit_loops=True)
    first = schedule.decompose_reduction(c, c0)
    for loop in schedule.get_loops(first)[-3:]:
        schedule.unroll(loop)
    taps = math.prod(shape.taps)
    for loop in (tap_z, tap_y) if taps <= UNROLLED else ():
        schedule.unroll(loop)
    for loop in (tap_x, r1, y2, x2):
        schedule.unroll(loop)
    *_, rows, high, wide = schedule.get_loops(last)
    schedule.unroll(rows)
    schedule.unroll(high)
    whole = shape.out[2] % plan.wide == 0 and plan.wide in (2, 4)
    (schedule.vectorize if whole else schedule.unroll)(wide)
