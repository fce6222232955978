"""Convolutions: which of the ways to write one."""

from __future__ import annotations

from typing import Any

from collage_engine.kernels.cpu.convolution.shape import ConvShape
from collage_engine.kernels.cpu.depthwise import writer as depthwise
from collage_engine.kernels.cpu.direct_channels import writer as conv_channels
from collage_engine.kernels.cpu.direct_spatial import writer as conv_spatial
from collage_engine.kernels.cpu.pointwise.writer import Context
from collage_engine.kernels.cpu.winograd import writer as winograd
from collage_engine.kernels.cpu.writing.epilogue import surround
from collage_engine.kernels.program import Program, Stage
from collage_engine.kernels.tir_builder import Stmt

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
