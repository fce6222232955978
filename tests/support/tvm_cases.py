"""One-kernel Relax functions for the tests of the TVM toolchain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from collage_engine.kernels.cpu.winograd import reference as winograd
from collage_engine.kernels.scheduler import Kernel, schedule
from collage_engine.kernels.target import Cpu, cpu
from collage_engine.kernels.verify import random_arguments, verify
from collage_engine.toolchains.tvm.lowering import fused

TOLERANCE = 2e-5


def function(shapes: Sequence[tuple[int, ...]], body: Callable[..., Any]) -> tvm.IRModule:
    """``main`` over float32 inputs of these shapes; ``body(*vars)`` builds the expression.

    A body may also yield expressions, each bound before it goes on; the last is the output.
    """
    builder = relax.BlockBuilder()
    parameters = [
        relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)
    ]
    with builder.function("main", parameters):
        with builder.dataflow():
            steps = body(*parameters)
            if hasattr(steps, "send"):
                value = None
                try:
                    while True:
                        value = builder.emit(steps.send(value))
                except StopIteration:
                    pass
            else:
                value = builder.emit(steps)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def kernels(module: tvm.IRModule, processor: Cpu | None = None) -> list[Kernel]:
    """Freshly scheduled kernels of a module, layouts as they stand."""
    processor = processor or cpu(2)
    return [
        schedule(f, processor)
        for f in fused(module, processor).functions.values()
        if isinstance(f, tvm.tirx.PrimFunc)
    ]


def arguments(kernel: Kernel) -> list[np.ndarray]:
    """Random values for a kernel's parameters; a transformed weight is one of some weight."""
    values = random_arguments(kernel.plain, 0)
    if kernel.schedule == "conv winograd":
        blocks, points, channels, block = values[1].shape
        weight = np.random.default_rng(1).standard_normal((blocks * block, channels, 3, 3))
        values[1] = winograd.pack(weight, {16: 2, 36: 4}[points], block)
    return values


def error_of(kernel: Kernel) -> float:
    """The kernel against its plain self."""
    return verify(kernel.function, kernel.plain, inputs=arguments(kernel))


def check(module: tvm.IRModule, *expected: str, processor: Cpu | None = None) -> None:
    """Every kernel is scheduled and agrees with its plain self.

    ``expected``: the schedules that wrote them, in any order, where that matters.
    """
    found = kernels(module, processor)
    for kernel in found:
        error = error_of(kernel)
        assert error <= TOLERANCE, f"{kernel.schedule}: {error}\n{kernel.function.script()}"
        assert kernel.schedule != "plain" and not kernel.reason, kernel.reason
    assert not expected or sorted(k.schedule for k in found) == sorted(expected)


def constant(*shape: int, seed: int = 0) -> Any:
    return relax.const(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def conv(
    data: tuple[int, ...],
    weight: tuple[int, ...],
    stride: int = 1,
    padding: int | Sequence[int] = 0,
    dilation: int = 1,
    groups: int = 1,
    layout: str = "NCHW",
    tail: str = "relu",
) -> tvm.IRModule:
    """A convolution (``data`` in ``layout``, ``weight`` as OIHW…) and what follows it."""
    dims = len(data) - 2
    operator = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}[dims]
    kernel_layout = "OI" + "DHW"[3 - dims :]
    pads = [padding] * (2 * dims) if isinstance(padding, int) else list(padding)
    channels = weight[0]
    last = layout.endswith("C")
    bias = (1, *([1] * dims), channels) if last else (1, channels, *([1] * dims))

    def body(x: Any, *more: Any) -> Any:
        y = yield operator(
            x,
            constant(*weight),
            [stride] * dims,
            pads,
            [dilation] * dims,
            groups,
            layout,
            kernel_layout,
            layout,
        )
        if tail == "none":
            return
        y = yield relax.op.add(y, constant(*bias, seed=1))
        if tail == "relu":
            yield relax.op.nn.relu(y)
        elif tail == "residual":
            z = yield relax.op.add(y, more[0])
            yield relax.op.nn.relu(z)
        elif tail == "silu":
            s = yield relax.op.sigmoid(y)
            yield relax.op.multiply(y, s)

    shapes = [data]
    if tail == "residual":
        size = data[1:-1] if last else data[2:]
        reach = [dilation * (k - 1) + 1 for k in weight[2:]]
        out = [(s + pads[i] + pads[dims + i] - reach[i]) // stride + 1 for i, s in enumerate(size)]
        shapes.append((data[0], *out, channels) if last else (data[0], channels, *out))
    return function(shapes, body)
