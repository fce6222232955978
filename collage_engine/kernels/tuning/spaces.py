"""The plans that our schedules can follow for one anchor, and which are next to each other.

A plan is complete: it names every parameter of its way, so that two different names mean two
different kernels. Sizes are those of ``schedules/``: block in vectors of output channels, rows and
columns of the register tile, chunk of input channels whose weights stay in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from collage_engine.kernels.cpu.convolution.problem import Geometry
from collage_engine.kernels.cpu.direct_spatial import writer as conv_spatial
from collage_engine.kernels.cpu.matmul import writer as matmul
from collage_engine.kernels.cpu.winograd import cost as winograd_plan
from collage_engine.kernels.cpu.winograd.matrices import OUTPUTS
from collage_engine.kernels.cpu.writing import tile_choice as conv_plan
from collage_engine.kernels.cpu.writing.tile_cost import fits
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import divisor, product
from collage_engine.kernels.tuning.hill_climbing import Plan

Description = dict[str, Any]
MOST_COLUMNS = 28


def start_of(description: Description, cpu: Cpu) -> Plan:
    """The plan that the schedules make by themselves; empty where they have none to choose."""
    family = description["family"]
    if family == "conv":
        geometry = Geometry.from_description(description)
        way = geometry.way(cpu)
        if way == "depthwise":
            return _depthwise_start(geometry, cpu)
        if way == "winograd":
            return _winograd(geometry, cpu)
        return _spatial(geometry, cpu) if way == "spatial" else _channels(geometry, cpu)
    rows, depth, columns = _sizes(description)
    if family == "packed":
        plan = matmul.plan_of(cpu, rows, depth, columns)
        if rows == 1:
            return {"block": plan.block // cpu.lanes("float32")}
        return _cut(cpu, plan, (rows, 1))
    lanes = cpu.lanes("float32")
    wide = max(1, conv_plan.block_of(cpu, columns, (rows, 1), chunks=False) // lanes)
    pack = rows >= matmul.PACK_ROWS and 4 * depth * columns > cpu.l1_bytes
    return {"block": wide, "rows": matmul.height_of(cpu, rows, wide), "pack": int(pack)}


def neighbours_of(description: Description, cpu: Cpu, plan: Plan) -> Iterator[Plan]:
    """Plans that differ in one respect, the respects that matter most first."""
    family = description["family"]
    if family == "conv":
        geometry = Geometry.from_description(description)
        way = geometry.way(cpu, plan)
        if way == "depthwise":
            yield from _depthwise_around(geometry, cpu, plan)
        elif way == "winograd":
            yield from _winograd_around(geometry, cpu, plan)
        elif way == "spatial":
            yield from _spatial_around(geometry, cpu, plan)
        else:
            plain = conv_plan.is_plain(product(geometry.kernel), any(geometry.padding))
            image = conv_plan.image_of(geometry.out, plain)
            turns = not geometry.channels_last and plain and geometry.groups == 1
            turns = turns and all(s == 1 for s in geometry.strides)
            yield from _around(
                cpu,
                plan,
                geometry.co_group,
                geometry.ci_group,
                product(geometry.kernel),
                image,
                turns,
            )
        if way != "depthwise":
            for other in geometry.ways(cpu):
                if other != way:
                    yield STARTS[other](geometry, cpu)
        return
    rows, depth, columns = _sizes(description)
    lanes = cpu.lanes("float32")
    if family == "packed" and rows == 1:
        for block in range(1, min(16, -(-columns // lanes)) + 1):
            yield {**plan, "block": block}
    elif family == "packed":
        yield from _around(cpu, plan, columns, depth, 1, (rows, 1), False)
    else:
        yield {**plan, "pack": 1 - plan["pack"]}
        for block in _blocks(plan["block"], -(-columns // lanes)):
            yield {**plan, "block": block, "rows": matmul.height_of(cpu, rows, block)}
        for height in _near(plan["rows"], min(rows, MOST_COLUMNS)):
            if fits(cpu, height, plan["block"]):
                yield {**plan, "rows": height}


def _sizes(description: Description) -> tuple[int, int, int]:
    if description["family"] == "packed":
        return description["rows"], description["depth"], description["columns"]
    left, right = description["left"], description["right"]
    return left[-2], left[-1], right[-1]


# Channels in the lanes: convolutions and packed products ------------------------------------


def _channels(geometry: Geometry, cpu: Cpu) -> Plan:
    taps = product(geometry.kernel)
    image = conv_plan.image_of(geometry.out, conv_plan.is_plain(taps, any(geometry.padding)))
    cut = conv_plan.plan_of(cpu, geometry.co_group, geometry.ci_group, taps, image)
    return {"way": "channels", **_cut(cpu, cut, image)}


def _cut(cpu: Cpu, cut: conv_plan.Plan, image: tuple[int, int]) -> dict[str, Any]:
    vectors = cut.block // cpu.lanes("float32")
    rows, columns = conv_plan.best_positions(cpu, vectors, image)
    return {"block": vectors, "chunk": cut.chunk, "rows": rows, "columns": columns}


def _around(
    cpu: Cpu,
    plan: Plan,
    channels: int,
    depth: int,
    taps: int,
    image: tuple[int, int],
    turns: bool,
) -> Iterator[Plan]:
    lanes = cpu.lanes("float32")
    rows, columns = image
    if turns:
        for turn in ("group", "whole"):
            yield {**plan, "turn": turn}
    for block in _blocks(plan["block"], -(-channels // lanes)):
        tile = conv_plan.best_positions(cpu, block, image)
        per_channel = 4 * taps * block * lanes
        chunk = divisor(depth, max(1, cpu.l1_bytes // 2 // per_channel))
        chunk = chunk if chunk * taps >= 32 else depth
        yield {**plan, "block": block, "chunk": chunk, "rows": tile[0], "columns": tile[1]}
    if columns == 1:
        for height in _near(plan["rows"], min(rows, MOST_COLUMNS)):
            if fits(cpu, height, plan["block"]):
                yield {**plan, "rows": height}
    else:
        for width in _near(plan["columns"], min(columns, MOST_COLUMNS)):
            if fits(cpu, width, plan["block"]):
                yield {**plan, "rows": 1, "columns": width}
        for height in range(1, rows + 1):
            if fits(cpu, height * columns, plan["block"]):
                yield {**plan, "rows": height, "columns": columns}
    chunks = [d for d in range(1, depth + 1) if depth % d == 0 and d * taps >= 32]
    place = min(range(len(chunks)), key=lambda i: abs(chunks[i] - plan["chunk"]), default=0)
    for step in (place - 1, place + 1, len(chunks) - 1):
        if 0 <= step < len(chunks):
            yield {**plan, "chunk": chunks[step]}
    for inside in (0, 1):
        yield {**plan, "inside": inside}
    if cpu.threads == 1:
        yield {**plan, "ahead": "tile" if plan.get("ahead") != "tile" else "step"}
    group = plan.get("group")
    sums = 4 * plan["rows"] * columns * plan["block"] * lanes
    usual = max(1, cpu.l1_bytes * 2 // 3 // sums)
    for size in (usual // 2, usual * 2, usual * 8) if group is None else (group // 2, group * 2):
        if size >= 1:
            yield {**plan, "group": size}


# Positions in the lanes -----------------------------------------------------------------------


def _spatial(geometry: Geometry, cpu: Cpu) -> Plan:
    height = conv_spatial.rows_of(cpu, geometry.co_group, geometry.positions())
    vectors = -(-geometry.positions() // cpu.lanes("float32"))
    wide = conv_spatial.vectors_of(cpu, height, vectors)
    return {"way": "spatial", "block": height, "vectors": wide, "band": conv_spatial.BAND_BYTES}


def _spatial_around(geometry: Geometry, cpu: Cpu, plan: Plan) -> Iterator[Plan]:
    for height in _near(plan["block"], min(16, geometry.co_group)):
        widths = [v for v in range(1, 7) if fits(cpu, height, v)]
        if widths:
            yield {**plan, "block": height, "vectors": min(plan["vectors"], max(widths))}
    for wide in _near(plan["vectors"], 6):
        if fits(cpu, plan["block"], wide):
            yield {**plan, "vectors": wide}
    for band in (plan["band"] // 2, plan["band"] * 2):
        if 4 << 10 <= band <= 512 << 10:
            yield {**plan, "band": band}
    for inside in (0, 1):
        yield {**plan, "inside": inside}


# Winograd's method -----------------------------------------------------------------------------


def _winograd(geometry: Geometry, cpu: Cpu, outputs: int = 0) -> Plan:
    channels = (geometry.ci, geometry.co)
    outputs = outputs or winograd_plan.outputs_of(cpu, geometry.co, geometry.ci, geometry.out)
    tiles = winograd_plan.tiles_of(geometry.out, outputs)
    block = winograd_plan.block(cpu, geometry.co, tiles[0] * tiles[1])
    group = winograd_plan.group_rows(cpu, channels, block, tiles, outputs, {})
    vectors = block // cpu.lanes("float32")
    rows = conv_plan.best_positions(cpu, vectors, (group * tiles[1], 1))[0]
    return {"way": "winograd", "outputs": outputs, "block": vectors, "group": group, "rows": rows}


def _winograd_around(geometry: Geometry, cpu: Cpu, plan: Plan) -> Iterator[Plan]:
    for outputs in OUTPUTS:
        if outputs != plan["outputs"]:
            yield _winograd(geometry, cpu, outputs)
    lanes = cpu.lanes("float32")
    tile_rows, columns = winograd_plan.tiles_of(geometry.out, plan["outputs"])
    for block in _blocks(plan["block"], -(-geometry.co // lanes)):
        rows = conv_plan.best_positions(cpu, block, (plan["group"] * columns, 1))[0]
        yield {**plan, "block": block, "rows": rows}
    for group in (plan["group"] // 2, plan["group"] * 2, tile_rows):
        if 1 <= group <= tile_rows:
            yield {**plan, "group": group}
    for height in _near(plan["rows"], min(plan["group"] * columns, MOST_COLUMNS)):
        if fits(cpu, height, plan["block"]):
            yield {**plan, "rows": height}


STARTS = {"channels": _channels, "spatial": _spatial, "winograd": _winograd}


# Depthwise --------------------------------------------------------------------------------------


def _depthwise_start(geometry: Geometry, cpu: Cpu) -> Plan:
    if geometry.channels_last:
        return {"way": "depthwise", "vectors": 2, "columns": 8}
    return {"way": "depthwise", "vectors": 4, "rows": 2}


def _depthwise_around(geometry: Geometry, cpu: Cpu, plan: Plan) -> Iterator[Plan]:
    wide = -(-geometry.out[-1] // cpu.lanes("float32"))
    if geometry.channels_last:
        for columns in _near(plan["columns"], min(14, geometry.out[-1])):
            yield {**plan, "columns": columns}
        for vectors in _near(plan["vectors"], 4):
            yield {**plan, "vectors": vectors}
        for band in (2, 8, 32):
            yield {**plan, "band": band}
        return
    rows = geometry.out[-2] if len(geometry.out) > 1 else 1
    for height in _near(plan["rows"], min(8, rows)):
        yield {**plan, "rows": height}
    for vectors in _near(min(plan["vectors"], wide), min(4, wide)):
        yield {**plan, "vectors": vectors}
    for planes in (1, 2, 4, 8, 16):
        yield {**plan, "planes": planes}


def _near(value: int, most: int) -> list[int]:
    """Other sizes up to a limit, the nearest first."""
    return sorted((v for v in range(1, most + 1) if v != value), key=lambda v: abs(v - value))[:6]


def _blocks(now: int, most: int) -> list[int]:
    return [b for b in _near(now, min(4, most)) if b != now]
