"""Makes Relax functions of one kernel for the tests of the TVM toolchain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from msgspec.structs import replace
from tvm import relax

from collage_engine.kernels.choices import Choices, using
from collage_engine.kernels.cpu.winograd import matrices as winograd
from collage_engine.kernels.rule import Decision
from collage_engine.kernels.scheduler import RULES, SCHEDULE, Kernel, schedule
from collage_engine.kernels.target import Cpu, cpu
from collage_engine.toolchains.tvm.lowering import fused
from tests.support.index_bounds import out_of_bounds
from tests.support.kernel_checks import random_arguments, verify

TOLERANCE = 2e-5


def function(shapes: Sequence[tuple[int, ...]], body: Callable[..., Any]) -> tvm.IRModule:
    """Returns ``main`` over float32 inputs of these shapes; ``body(*vars)`` builds the expression.

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
    """Returns freshly scheduled kernels of a module, layouts as they stand."""
    processor = processor or cpu(2)
    return [
        schedule(f, processor)
        for f in fused(module, processor).functions.values()
        if isinstance(f, tvm.tirx.PrimFunc)
    ]


class ByRule(Choices):
    """A table that has every problem written by one rule, its default plan changed."""

    def __init__(self, name: str, processor: Cpu, changes: dict[str, Any]) -> None:
        super().__init__()
        self.rule, self.processor, self.changes = RULES.rule(name), processor, changes

    def plan(self, workload: str, description: dict[str, Any]) -> dict[str, Any]:
        problem = RULES.problem(description)
        if not isinstance(problem, self.rule.problem_type):
            return {}
        plan = changed(self.rule, problem, self.processor, self.changes)
        return Decision(self.rule, problem, plan).to_record()


def schedules(module: tvm.IRModule) -> dict[str, str]:
    """The names of the schedules of a lowered module's kernels, by the kernels' names."""
    functions = module.functions.items()
    kernels = ((v, f) for v, f in functions if isinstance(f, tvm.tirx.PrimFunc))
    return {str(variable.name_hint): str(kernel.attrs[SCHEDULE]) for variable, kernel in kernels}


def changed(rule: Any, problem: Any, processor: Cpu, changes: dict[str, Any]) -> Any:
    """Returns the rule's default plan with changes.

    Of several changes, the first one comes with what suits it beside.
    """
    plans = [rule.default(problem, processor)]
    plans += rule.neighbours(problem, plans[0], processor)
    for name, value in list(changes.items())[:1]:
        plans = [plan for plan in plans if getattr(plan, name) == value] or plans
    return replace(plans[0], **changes)


def kernels_by(
    name: str, module: tvm.IRModule, processor: Cpu | None = None, **changes: Any
) -> list[Kernel]:
    """Returns a module's kernels as this rule writes them, by its default plan with changes."""
    processor = processor or cpu(2)
    with using(ByRule(name, processor, changes)):
        return kernels(module, processor)


def arguments(kernel: Kernel) -> list[np.ndarray]:
    """Returns random values for a kernel's parameters; a transformed weight is that of a weight."""
    values = random_arguments(kernel.plain)
    if kernel.schedule == "conv winograd":
        blocks, points, channels, block = values[1].shape
        weight = np.random.default_rng(1).standard_normal((blocks * block, channels, 3, 3))
        values[1] = winograd.pack(weight, {16: 2, 36: 4}[points], block)
    return values


def error_of(kernel: Kernel) -> float:
    """Returns a kernel's error against its plain self, after a check of its indices.

    No index of a scheduled kernel may lie outside its buffer.
    """
    outside = [] if kernel.unscheduled else out_of_bounds(kernel.function)
    assert not outside, "\n".join(outside)
    return verify(kernel.function, kernel.plain, inputs=arguments(kernel))


def check(module: tvm.IRModule, *expected: str, processor: Cpu | None = None) -> None:
    """Checks that every kernel is scheduled and agrees with its plain self.

    ``expected``: the schedules that wrote them, in any order, where that matters.
    """
    check_all(kernels(module, processor), *expected)


def check_all(found: list[Kernel], *expected: str) -> None:
    """Checks kernels that were written already, as ``check`` does."""
    for kernel in found:
        error = error_of(kernel)
        assert error <= TOLERANCE, f"{kernel.schedule}: {error}\n{kernel.function.script()}"
        assert not kernel.unscheduled and not kernel.reason, kernel.reason
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
    """Returns a convolution (``data`` in ``layout``, ``weight`` as OIHW…) and what follows it."""
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
