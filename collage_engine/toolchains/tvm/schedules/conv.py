"""Convolutions: which of the ways to write one."""

from __future__ import annotations

from typing import Any

from collage_engine.toolchains.tvm.emit import Stmt
from collage_engine.toolchains.tvm.program import Program, Stage
from collage_engine.toolchains.tvm.schedules import (
    conv_channels,
    conv_spatial,
    depthwise,
    winograd,
)
from collage_engine.toolchains.tvm.schedules.conv_shape import ConvShape
from collage_engine.toolchains.tvm.schedules.epilogue import surround
from collage_engine.toolchains.tvm.schedules.pointwise import Context

WAYS: dict[str, Any] = {
    "channels": conv_channels.write,
    "spatial": conv_spatial.write,
    "depthwise": depthwise.write,
    "winograd": winograd.write,
}


def write(program: Program, anchor: Stage, context: Context) -> Stmt:
    shape = ConvShape.of(anchor)
    way = WAYS[anchor.note["way"]]
    return surround(program, anchor, context, lambda epilogue: way(shape, epilogue, context))
