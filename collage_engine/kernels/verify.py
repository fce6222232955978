"""Builds a kernel alone, and compares what it computes with what it should."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import tirx

from collage_engine.kernels.stack_buffers import PIPELINE
from collage_engine.machine.device import cpu_target


def build(function: tirx.PrimFunc) -> Any:
    """Returns the kernel alone, compiled for this machine, as ``module["kernel"]``."""
    named = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
    return tvm.tirx.build(named, tvm.target.Target(cpu_target()), PIPELINE)


def difference(want: np.ndarray, got: np.ndarray) -> float:
    """Returns max|want − got| / max|want|, infinite where infinities or NaN differ."""
    if want.size == 0:
        return 0.0
    a, b = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(
        a[~finite], b[~finite], equal_nan=True
    ):
        return float("inf")
    scale = float(np.abs(a[finite]).max(initial=0.0))
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / max(scale, 1e-30)
