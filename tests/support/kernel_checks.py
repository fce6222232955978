"""Compares a scheduled kernel with the plain computation it was scheduled from.

A schedule can be silently wrong, so every one is run beside its unscheduled self on random inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import tirx

from collage_engine.kernels.program import shape_of
from collage_engine.kernels.stack_buffers import PIPELINE
from collage_engine.kernels.tuner import difference
from collage_engine.machine.device import cpu_target


def verify(
    scheduled: tirx.PrimFunc, plain: tirx.PrimFunc, inputs: list[Any] | None = None
) -> float:
    """Runs a scheduled kernel and its plain computation on the same inputs.

    Args:
        scheduled: The scheduled kernel.
        plain: The plain computation.
        inputs: Arrays for the parameters in order, outputs included (overwritten); random by
            default.

    Returns:
        The largest difference relative to the largest plain value, over all outputs; infinite where
        infinities or NaN differ.
    """
    arguments = random_arguments(plain) if inputs is None else inputs
    results = []
    built = build_all(plain=plain, scheduled=scheduled)
    for name in ("plain", "scheduled"):
        tensors = [tvm.runtime.tensor(a.copy()) for a in arguments]
        built[name](*tensors)
        results.append([t.numpy() for t in tensors])
    worst = 0.0
    for want, got in zip(*results, strict=True):
        worst = max(worst, difference(want, got))
    return worst


def build_all(**functions: tirx.PrimFunc) -> Any:
    """Returns functions compiled together for this machine, as ``module[name]``.

    One build of two functions takes less time than two builds.
    """
    named = {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
    return tvm.tirx.build(tvm.IRModule(named), tvm.target.Target(cpu_target()), PIPELINE)


def random_arguments(function: tirx.PrimFunc) -> list[np.ndarray]:
    """Returns normal floats and small non-negative integers, for inputs and outputs alike.

    What a kernel leaves unwritten then differs from what its plain self writes there.
    """
    random = np.random.default_rng(0)
    arrays = []
    for parameter in function.params:
        shape, dtype = shape_of(parameter), str(parameter.dtype)
        if "float" in dtype:
            arrays.append(random.standard_normal(shape).astype(dtype))
        else:
            arrays.append(random.integers(0, 2, shape).astype(dtype))
    return arrays
