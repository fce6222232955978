"""One anchor as a kernel of its own: made by a plan, checked, and timed against another.

The kernel is the convolution or product followed by a ReLU, as most are. Its numbers are checked
once against its unscheduled self, and every plan's against those.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from collage_engine.kernels.cpu.convolution.problem import DIRECT, Geometry
from collage_engine.kernels.cpu.matmul.legalize import pack, packed_product, product_of
from collage_engine.kernels.cpu.matmul.writer import chosen_plan
from collage_engine.kernels.relax_values import ANCHOR
from collage_engine.kernels.scheduler import schedule
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tuning.hill_climbing import Plan, name_of
from collage_engine.kernels.tuning.spaces import Description
from collage_engine.kernels.verify import build, difference
from collage_engine.records.errors import ToolchainError

TOLERANCE = 1e-4
SAMPLE_S = 0.001
ROUNDS = 9
FINAL_ROUNDS = 25
HOPELESS = 1.15
"""After three rounds a challenger this much slower is not timed further."""
PLAIN_LIMIT = 600_000_000
"""Multiply-adds up to which the unscheduled loops are run for the true result; above, the numbers
are checked against those of the default plan alone, and later against the model's own values."""


@dataclass
class Made:
    """A kernel by one plan, with its arguments."""

    call: Callable[[], None]
    output: Any
    calls: int = 1
    """Per sample."""

    def sample(self, clock: Callable[[], float]) -> float:
        begun = clock()
        for _ in range(self.calls):
            self.call()
        return (clock() - begun) / self.calls


class AnchorBench:
    """Makes and compares kernels of one anchor."""

    def __init__(self, description: Description, cpu: Cpu) -> None:
        self.description, self.cpu = description, cpu
        # Work of the operating system or of neighbours does not count at one thread.
        self.clock = time.process_time if cpu.threads == 1 else time.perf_counter
        random = np.random.default_rng(0)
        self.left, self.right = (
            random.standard_normal(shape, dtype=np.float32) for shape in self._shapes()
        )
        self.right *= np.float32(self._depth() ** -0.5)
        self._made: dict[str, Made] = {}
        self.truth: np.ndarray | None = None

    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        d = self.description
        if d["family"] == "conv":
            return tuple(d["data"]), tuple(d["weight"])
        if d["family"] == "packed":
            return (d["rows"], d["depth"]), (d["depth"], d["columns"])
        return tuple(d["left"]), tuple(d["right"])

    def _depth(self) -> int:
        d = self.description
        if d["family"] == "conv":
            return int(np.prod(d["weight"][1:]))
        return int(d["depth"] if d["family"] == "packed" else d["left"][-1])

    def program(self, plan: Plan) -> tuple[tirx.PrimFunc, np.ndarray]:
        """The unscheduled kernel that asks for the plan, and its right operand."""
        d = self.description
        left = te.placeholder(self.left.shape, "float32", name="left")
        if d["family"] == "conv":
            geometry = Geometry.from_description(d)
            way = geometry.way(self.cpu, plan)
            operand = geometry.pack(self.right, way, self.cpu, plan)
            right = te.placeholder(operand.shape, "float32", name="right")
            result = geometry.compute(left, right, way, plan)
        elif d["family"] == "packed":
            sizes = d["rows"], d["depth"], d["columns"]
            operand = pack(self.right, chosen_plan(self.cpu, *sizes, plan))
            right = te.placeholder(operand.shape, "float32", name="right")
            result = packed_product(left, right, (d["rows"], d["columns"]), plan)
        else:
            operand = self.right
            right = te.placeholder(operand.shape, "float32", name="right")
            result = product_of(left, right, tuple(d["out"]), plan)
        zero = tirx.const(0, "float32")
        relu = te.compute(result.shape, lambda *i: te.max(result(*i), zero), name="relu")
        function = te.create_prim_func([left, right, relu])
        return function.with_attr(ANCHOR), np.ascontiguousarray(operand)

    def make(self, plan: Plan) -> Made:
        """The kernel by a plan. ``ToolchainError`` when it cannot be written or is wrong."""
        name = name_of(plan)
        if name in self._made:
            return self._made[name]
        function, operand = self.program(plan)
        if self.truth is None:
            self.truth = self._true() if not plan else self.make({}).output.numpy()
        kernel = schedule(function, self.cpu)
        if kernel.reason or kernel.schedule == "plain":
            raise ToolchainError(f"no schedule: {kernel.reason or kernel.schedule}")
        made = self._ready(kernel.function, operand)
        made.call()
        error = difference(self.truth, made.output.numpy())
        if error > TOLERANCE:
            raise ToolchainError(f"wrong numbers: relative error {error:.2g}")
        each = max(made.sample(self.clock), 1e-7)
        made.calls = max(1, round(SAMPLE_S / each))
        self._made[name] = made
        return made

    def _ready(self, function: tirx.PrimFunc, operand: np.ndarray) -> Made:
        out = tuple(int(e) for e in function.params[-1].shape)
        tensors = [tvm.runtime.tensor(a) for a in (self.left, operand)]
        result = tvm.runtime.tensor(np.full(out, np.nan, np.float32))
        call = build(function)["kernel"]
        return Made(lambda: call(*tensors, result), result)

    def _true(self) -> np.ndarray:
        """What the unscheduled loops give; the default's own where they would take too long."""
        function, operand = self.program(DIRECT if self.description["family"] == "conv" else {})
        out = tuple(int(e) for e in function.params[-1].shape)
        plain = function
        if int(np.prod(out)) * self._depth() > PLAIN_LIMIT:
            plain = schedule(function, self.cpu).function
        made = self._ready(plain, operand)
        made.call()
        return np.array(made.output.numpy())

    def compare(self, challenger: Plan, best: Plan, rounds: int = ROUNDS) -> float:
        """Time of the challenger as a share of the best's, from rounds in which both take turns."""
        pair = self.make(challenger), self.make(best)
        ratios: list[float] = []
        for number in range(rounds):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            seconds = [0.0, 0.0]
            for place in order:
                seconds[place] = pair[place].sample(self.clock)
            ratios.append(seconds[0] / max(seconds[1], 1e-9))
            if number == 2 and min(ratios) > HOPELESS:
                break
        return statistics.median(ratios)

    def forget(self, keep: Plan) -> None:
        """Give back the memory of kernels that lost."""
        kept = {name_of({}), name_of(keep)}
        self._made = {name: made for name, made in self._made.items() if name in kept}

    def confirmed(self, plan: Plan) -> float:
        """Time of a plan as a share of the default's, at worst: in two settings of many rounds,
        each with kernels and buffers of its own, since where buffers lie matters too."""
        ratios = []
        for _ in range(2):
            self._made.clear()
            ratios.append(self.compare(plan, {}, FINAL_ROUNDS))
        return max(ratios)

    def seconds(self, plan: Plan) -> float:
        """Least seconds of a call, by the wall clock."""
        made = self.make(plan)
        return min(made.sample(self.clock) for _ in range(5))
