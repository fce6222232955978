"""The schedule of a product: slices in shared memory, tiles in registers or fragments.

While a slice is multiplied the next one is on its way: it is read into registers first, and
written to the other half of shared memory when the multiplication is done (software pipeline).
What follows the product (bias, residual, activation) is done on the tile before it is written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from collage_engine.records.errors import ToolchainError
from collage_engine.toolchains.tvm.cuda.fragments import ELEMENTS, RESULT, SHARED, STAND_IN
from collage_engine.toolchains.tvm.cuda.intrinsics import finish_sources, intrinsics
from collage_engine.toolchains.tvm.cuda.products import PRODUCT
from collage_engine.toolchains.tvm.cuda.tiles import FRAGMENT, PLAIN, TF32, WARP, Plan, Tile

_REGISTERS = "tirx.manifest_shared_memory_local_stage"
"""Block annotation: a copy to shared memory goes through registers, as two steps."""
_UNROLLED = 512


@dataclass(frozen=True)
class _Product:
    """What the legalisation noted of a product."""

    plan: Plan
    out: tuple[int, ...]
    sizes: tuple[int, int, int, int]
    vectors: tuple[int, int]
    how: dict[str, Any]

    @property
    def tile(self) -> Tile:
        return self.plan.tile


def noted(function: tirx.PrimFunc) -> _Product | None:
    """The product in a function, if the legalisation put one there."""
    schedule = Schedule(function)
    try:
        block = schedule.get_sblock("product_c")
    except Exception:  # TVM's own error class: there is no such block
        return None
    note = json.loads(str(schedule.get(block).annotations[PRODUCT]))
    return _Product(
        Plan.from_record(note), tuple(note["out"]), tuple(note["sizes"]), tuple(note["vectors"]),
        note,
    )  # fmt: skip


def scheduled(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel. ``ToolchainError`` when the function holds more than a product can take in."""
    found = noted(function)
    if found is None:
        raise ToolchainError("there is no product to schedule")
    schedule = Schedule(function)
    try:
        last = _epilogue(schedule, found)
        (_plain if found.tile.math == PLAIN else _tensor)(schedule, found, last)
    except ToolchainError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ToolchainError(f"a product cannot be tiled: {lines[-1][:160]}") from error
    return schedule.mod["main"]


def _epilogue(schedule: Schedule, product: _Product) -> Any:
    """What follows as one block over (s, m, n), the axes of the product."""
    block = _last(schedule, schedule.get_sblock("product_out"))
    changed = True
    while changed:
        changed = False
        for producer in _producers(schedule, block):
            if str(schedule.get(producer).name_hint) in ("product_a", "product_b", "product_c"):
                continue
            schedule.compute_inline(producer)
            changed = True
            break
    shape = tuple(int(e) for e in schedule.get(block).writes[0].source.shape)
    full = product.out if product.plan.split == 1 else (product.plan.split, *product.out)
    if shape != full:
        raise ToolchainError(f"the product's result {full} is turned into {shape}")
    schedule.transform_block_layout(block, _axes(product))
    return block


def _last(schedule: Schedule, block: Any) -> Any:
    """The block that all that follows leads to."""
    waiting, ends = [block], {}
    while waiting:
        block = waiting.pop()
        consumers = schedule.get_consumers(block)
        waiting += consumers
        if not consumers:
            ends[str(schedule.get(block).name_hint)] = block
    if len(ends) > 1:
        raise ToolchainError("the product has several results")
    return next(iter(ends.values()))


def _producers(schedule: Schedule, block: Any) -> list[Any]:
    found = []
    for producer in schedule.get_producers(block):
        found += [producer, *_producers(schedule, producer)]
    return found


def _axes(product: _Product) -> tirx.IndexMap:
    """From the result's index to (s, m, n)."""
    out, (s_size, m_size, _, _), split = product.out, product.sizes, product.plan.split

    def fused(index: Any, shape: Any) -> Any:
        total: Any = tirx.const(0)
        for i, size in zip(index, shape, strict=True):
            total = total * size + i
        return total

    def one(index: Any) -> tuple[Any, Any, Any]:
        if product.how["kind"] == "conv":
            image, channel, *pixel = index
            n = fused((image, *pixel), (out[0], *out[2:]))
            if s_size == 1:
                return tirx.const(0), channel, n
            return tirx.floordiv(channel, m_size), tirx.floormod(channel, m_size), n
        if product.how["merged"]:
            return tirx.const(0), fused(index[:-1], out[:-1]), index[-1]
        return fused(index[:-2], out[:-2]), index[-2], index[-1]

    def axes(*index: Any) -> tuple[Any, ...]:
        if split == 1:
            return one(index)
        s, m, n = one(index[1:])
        return index[0] * s_size + s, m, n

    index = [tirx.Var(f"i{i}", "int32") for i in range(len(out) + (split > 1))]
    return tirx.IndexMap(index, list(axes(*index)), None)


def _vector(length: int, tile_row: int, item: int, most: int = 16) -> int:
    """Elements read at once: rows that are whole vectors, in memory and in the tile."""
    width = most // item
    while width > 1 and (length % width or tile_row % width):
        width //= 2
    return width


def _fetch(
    schedule: Schedule, product: _Product, consumer: Any, operand: int, at: Any, threads: Any,
    turned: bool,
) -> Any:  # fmt: skip
    """Copies a slice of A (0) or B (1) to shared memory, all threads together.

    ``turned``: A is kept by k, so that a thread's rows are neighbours.
    """
    tile = product.tile
    copy = schedule.cache_read(consumer, operand, SHARED[tile.math])
    (source,) = schedule.get_producers(copy)
    schedule.compute_at(copy, at)
    schedule.compute_inline(source)
    if turned:
        schedule.transform_layout(copy, ("write", 0), lambda s, m, k: (s, k, m))
    row, column = schedule.get_loops(copy)[-2:]
    by_k = operand == 0 and tile.math == PLAIN and product.how["kind"] == "conv"
    if by_k:
        schedule.reorder(column, row)  # neighbouring threads read neighbouring rows
        row, column = column, row
    item = 4 if tile.math in (PLAIN, TF32) else 2
    width = tile.n if operand else (tile.m if by_k else tile.k)
    stored = max(item, product.how["item"])  # float32 may be rounded on the way
    vector = 1 if tile.math == TF32 else _vector(product.vectors[operand], width, stored)
    if turned and not by_k:
        vector = 1  # written down a column
    vector = min(vector, max(1, tile.m * tile.k // tile.threads if operand == 0
                             else tile.n * tile.k // tile.threads))  # fmt: skip
    fused = schedule.fuse(row, column)
    sizes = [None, *(count for _, count in threads), vector]
    _, *bound, inner = schedule.split(fused, sizes)
    for loop, (name, _) in zip(bound, threads, strict=True):
        schedule.bind(loop, name)
    if vector > 1:
        schedule.vectorize(inner)
    if tile.math != PLAIN:
        schedule.storage_align(copy, 0, -2, 32, 16 // item)
    schedule.annotate(copy, _REGISTERS, 1)
    return copy


def _pipeline(schedule: Schedule, loop: Any, steps: int) -> None:
    """Steps of a slice: read A, write A, read B, write B, multiply."""
    if steps < 2:
        return
    schedule.annotate(loop, "software_pipeline_stage", [0, 0, 0, 0, 1])
    schedule.annotate(loop, "software_pipeline_order", [0, 3, 1, 4, 2])


def _plain(schedule: Schedule, product: _Product, last: Any) -> None:
    tile = product.tile
    c = schedule.get_sblock("product_c")
    schedule.set_scope(c, 0, "local")
    s, m, n, k = schedule.get_loops(c)
    m0, m1, m2 = schedule.split(m, [None, tile.m // tile.thread[0], tile.thread[0]])
    n0, n1, n2 = schedule.split(n, [None, tile.n // tile.thread[1], tile.thread[1]])
    k0, k1 = schedule.split(k, [None, tile.k])
    schedule.reorder(s, m0, n0, m1, n1, k0, k1, m2, n2)
    thread = schedule.fuse(m1, n1)
    _bind_blocks(schedule, s, m0, n0)
    schedule.bind(thread, "threadIdx.x")
    threads = [("threadIdx.x", tile.threads)]
    for operand in (0, 1):
        _fetch(schedule, product, c, operand, k0, threads, turned=operand == 0)
    schedule.reverse_compute_at(last, thread)
    steps = int(schedule.get(k0).extent)
    first = schedule.decompose_reduction(c, k0)
    for loop in schedule.get_loops(first)[-2:]:
        schedule.unroll(loop)
    schedule.unroll(m2)
    schedule.unroll(n2)
    schedule.unroll(k1)
    _pipeline(schedule, k0, steps)
    rows, columns = schedule.get_loops(last)[-2:]
    schedule.unroll(rows)
    (schedule.vectorize if _whole(product, tile.thread[1]) else schedule.unroll)(columns)


def _tensor(schedule: Schedule, product: _Product, last: Any) -> None:
    finish_sources()
    tile = product.tile
    names = intrinsics(tile.math)
    c = schedule.get_sblock("product_c")
    s, m, n, k = schedule.get_loops(c)
    depth = tile.depth_step
    m, m_in = schedule.split(m, [None, FRAGMENT])
    n, n_in = schedule.split(n, [None, FRAGMENT])
    k, k_in = schedule.split(k, [None, depth])
    schedule.reorder(s, m, n, k, m_in, n_in, k_in)
    outer = schedule.blockize(m_in)
    per_warp = (tile.thread[0] // FRAGMENT, tile.thread[1] // FRAGMENT)
    m0, m1, m2 = schedule.split(m, [None, tile.m // tile.thread[0], per_warp[0]])
    n0, n1, n2 = schedule.split(n, [None, tile.n // tile.thread[1], per_warp[1]])
    k0, k1 = schedule.split(k, [None, tile.k // depth])
    schedule.reorder(s, m0, n0, m1, n1, k0, k1, m2, n2)
    warp = schedule.fuse(m1, n1)
    _bind_blocks(schedule, s, m0, n0)
    schedule.bind(warp, "threadIdx.y")
    threads = [("threadIdx.y", tile.threads // WARP), ("threadIdx.x", WARP)]
    for operand in (0, 1):
        _fetch(schedule, product, outer, operand, k0, threads, turned=False)
    fragments = []
    for operand, scope in ((0, "wmma.matrix_a"), (1, "wmma.matrix_b")):
        fragment = schedule.cache_read(outer, operand, scope)
        if STAND_IN[tile.math] != ELEMENTS[tile.math]:
            schedule.unsafe_set_dtype(fragment, 0, STAND_IN[tile.math])
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
    _pipeline(schedule, k0, int(schedule.get(k0).extent))

    for fragment, shape, name in (
        (fragments[0], (FRAGMENT, depth), names.load_a),
        (fragments[1], (depth, FRAGMENT), names.load_b),
        (store, (FRAGMENT, FRAGMENT), names.store),
    ):
        i, j = schedule.get_loops(fragment)[-2:]
        i0, i1 = schedule.split(i, [None, shape[0]])
        j0, j1 = schedule.split(j, [None, shape[1]])
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
    vector = 4 if _whole(product, 4) else 1
    _, lane, inside = schedule.split(schedule.fuse(rows, columns), [None, WARP, vector])
    schedule.bind(lane, "threadIdx.x")
    if vector > 1:
        schedule.vectorize(inside)


def _bind_blocks(schedule: Schedule, s: Any, m0: Any, n0: Any) -> None:
    """Columns vary fastest: blocks that run together share rows of A."""
    schedule.bind(s, "blockIdx.z")
    schedule.bind(m0, "blockIdx.y")
    schedule.bind(n0, "blockIdx.x")


def _whole(product: _Product, vector: int) -> bool:
    """Whether every row of the result is whole vectors that no bound cuts through."""
    n = product.sizes[2]
    row = n // product.out[0] if product.how["kind"] == "conv" else n
    return n % vector == 0 and row % vector == 0
