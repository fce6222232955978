"""Checks that oneDNN's tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from collage_engine.toolchains.onednn.toolchain import OneDnnToolchain
from tests.support.toolchain_cases import (
    check_whole,
    default_instance,
)

F32 = np.float32


def weights(*shape: int, scale: float = 0.3) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return (random.standard_normal(shape) * scale).astype(F32)


def check(
    toolchain: OneDnnToolchain, model: ModelProto, threads: int = 1, tolerance: float = 1e-5
) -> dict[str, Any]:
    """Compile the whole model, compare, serialise, load, compare again; what is inside."""
    instance = default_instance(toolchain, threads)
    return toolchain.inside(check_whole(toolchain, model, instance, tolerance))


def steps(inside: dict[str, Any]) -> list[str]:
    return [s["what"] + (":" + s["fused"] if s["fused"] else "") for s in inside["steps"]]
