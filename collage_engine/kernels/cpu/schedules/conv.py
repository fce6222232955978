"""Convolutions: which of the ways to write one."""

from __future__ import annotations

from typing import Any

from collage_engine.kernels.cpu.schedules import conv_channels, conv_spatial, depthwise, winograd
from collage_engine.kernels.cpu.schedules.conv_shape import ConvShape
from collage_engine.kernels.cpu.schedules.epilogue import surround
from collage_engine.kernels.cpu.schedules.pointwise import Context
from collage_engine.kernels.emit import Stmt
from collage_engine.kernels.program import Program, Stage

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
