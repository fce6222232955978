"""Every operator that has TensorRT layers, with the function that adds them."""

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
