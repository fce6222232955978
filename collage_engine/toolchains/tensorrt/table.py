"""Maps each operator to the function that adds its TensorRT layers."""

from __future__ import annotations

from collage_engine.toolchains.tensorrt import (
    anchors,
    elementwise,
    quantised,
    reductions,
    shaping,
)
from collage_engine.toolchains.tensorrt.values import Layer

LAYERS: dict[str, Layer] = {
    **elementwise.LAYERS,
    **shaping.LAYERS,
    **reductions.LAYERS,
    **anchors.LAYERS,
    **quantised.LAYERS,
}
