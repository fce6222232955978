"""Tunes kernels: climbs over the decisions for one, each built, checked and timed.

Noise is the enemy: a plan replaces the best one only when it won in rounds that both took turns
in, and what is kept in the end has to win once more against the start, in fresh rounds.

The kernel is the convolution or product followed by a ReLU, as most are. Every decision's numbers
are checked against those of a rule that multiplies out, and later against the model's own values.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from collage_engine.kernels.relax_values import ANCHOR
from collage_engine.kernels.rule import Decision, PlanError
from collage_engine.kernels.scheduler import RULES, schedule
from collage_engine.kernels.stack_buffers import PIPELINE
from collage_engine.kernels.target import Cpu
from collage_engine.machine.cuda_runtime import GRAPH_S
from collage_engine.machine.device import cpu_target
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.records.placement import TIE_SHARE
from collage_engine.records.precision import FLOAT32, TOLERANCES
from collage_engine.support.errors import ToolchainError


def build(function: tirx.PrimFunc) -> Any:
    """Return the kernel alone, compiled for this machine, as ``module["kernel"]``."""
    named = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
    return tvm.tirx.build(named, tvm.target.Target(cpu_target()), PIPELINE)


def difference(want: np.ndarray, got: np.ndarray) -> float:
    """Return max|want − got| / max|want|, infinite where infinities or NaN differ."""
    return error_of(got.astype(np.float64), want.astype(np.float64))[1]


WORTH = 1 - TIE_SHARE
"""A challenger must need at most this share of the best's time: whatever is closer is a tie."""


@dataclass
class Climb:
    """The state of a climb: what was tried, and the best that was found."""

    start: Decision[Any, Any]
    best: Decision[Any, Any]
    ratio: float = 1.0
    """Time of the best as a share of the start's time, by the comparisons so far."""
    tried: int = 0
    complete: bool = False
    """Whether no neighbour is left that might be better; False where the time was spent before."""
    seen: set[str] = field(default_factory=set)


def climb(
    start: Decision[Any, Any],
    neighbours: Callable[[Decision[Any, Any]], Iterable[Decision[Any, Any]]],
    compare: Callable[[Decision[Any, Any], Decision[Any, Any]], float],
    *,
    stop: Callable[[], bool] = lambda: False,
    tried: Iterable[str] = (),
) -> Climb:
    """Walk from ``start`` to what no neighbour beats, or as far as ``stop`` lets it.

    A better neighbour is taken at once and the search goes on around it (first improvement):
    comparing costs far more than generating.

    Args:
        start: Where to begin.
        neighbours: What lies next to one, the most promising first.
        compare: (challenger, best) → time of the challenger as a share of the best's; infinite
            where the challenger is of no use.
        stop: Asked before every comparison.
        tried: Names not to try again (an earlier run compared them).
    """
    state = Climb(start, start, seen={start.name, *tried})
    improved = True
    while improved and not stop():
        improved = False
        for plan in neighbours(state.best):
            name = plan.name
            if name in state.seen:
                continue
            if stop():
                return state
            state.seen.add(name)
            state.tried += 1
            ratio = compare(plan, state.best)
            if ratio <= WORTH:
                state.best, state.ratio, improved = plan, state.ratio * ratio, True
                break
    state.complete = not improved
    return state


ROUNDS = 9
"""Rounds of a comparison. Chosen: odd, and few enough to try some thirty plans a minute."""
FINAL_ROUNDS = 3 * ROUNDS
"""Rounds that confirm what was found: as many as of three comparisons."""
HOPELESS = 1 + 10 * (1 - WORTH)
"""After three rounds a challenger this much slower is not timed further: by ten times the
difference that counts."""


@dataclass
class Made:
    """A kernel by one decision, with its arguments."""

    call: Callable[[], None]
    output: Any
    calls: int = 1
    """Calls of the kernel in one sample."""

    def sample(self, clock: Callable[[], float]) -> float:
        """Return the seconds of a call, the mean of one sample."""
        begun = clock()
        for _ in range(self.calls):
            self.call()
        return (clock() - begun) / self.calls


class KernelBench:
    """A bench that makes and compares kernels of one problem."""

    def __init__(self, problem: Any, cpu: Cpu) -> None:
        """Draws the operands.

        Raises:
            PlanError: No rule matches the problem.
        """
        self.problem, self.cpu = problem, cpu
        default = RULES.default(problem, cpu)
        if default is None:
            raise PlanError(f"no kernel rule matches {problem}")
        self.default = default
        # Work of the operating system or of neighbours does not count at one thread.
        self.clock = time.process_time if cpu.threads == 1 else time.perf_counter
        self.left, self.right = problem.operands(np.random.default_rng(0))
        self._made: dict[str, Made] = {}

    def program(self, decision: Decision[Any, Any]) -> tuple[tirx.PrimFunc, np.ndarray]:
        """Return the unscheduled kernel that asks for the decision, and its right operand."""
        operand = np.ascontiguousarray(decision.pack(self.cpu, self.right))
        left = te.placeholder(self.left.shape, str(self.left.dtype), name="left")
        right = te.placeholder(operand.shape, str(operand.dtype), name="right")
        result = decision.reference(left, right)
        zero = tirx.const(0, str(result.dtype))
        relu = te.compute(result.shape, lambda *i: te.max(result(*i), zero), name="relu")
        function = te.create_prim_func([left, right, relu])
        return function.with_attr(ANCHOR), operand

    def make(self, decision: Decision[Any, Any]) -> Made:
        """Return the kernel by a decision.

        Raises:
            ToolchainError: The rule cannot write it, or its numbers are wrong.
        """
        if decision.name in self._made:
            return self._made[decision.name]
        function, operand = self.program(decision)
        kernel = schedule(function, self.cpu)
        if kernel.reason or kernel.unscheduled:
            raise ToolchainError(f"no schedule: {kernel.reason or kernel.schedule}")
        made = self._ready(kernel.function, operand)
        made.call()
        error = difference(self.truth, made.output.numpy())
        if error > TOLERANCES[FLOAT32]:
            raise ToolchainError(f"wrong numbers: relative error {error:.2g}")
        each = max(made.sample(self.clock), 1e-7)
        made.calls = max(1, round(GRAPH_S / each))
        self._made[decision.name] = made
        return made

    def _ready(self, function: tirx.PrimFunc, operand: np.ndarray) -> Made:
        result = function.params[-1]
        out = tuple(int(e) for e in result.shape)
        tensors = [tvm.runtime.tensor(a) for a in (self.left, operand)]
        kind = np.dtype(str(result.dtype))
        # The output starts with a value that no kernel gives: an element that is not written shows.
        nothing = np.nan if kind.kind == "f" else np.iinfo(kind).min
        output = tvm.runtime.tensor(np.full(out, nothing, kind))
        call = build(function)["kernel"]
        return Made(lambda: call(*tensors, output), output)

    @cached_property
    def truth(self) -> np.ndarray:
        """Returns what the default gives, with which all others are compared."""
        function, operand = self.program(self.default)
        made = self._ready(schedule(function, self.cpu).function, operand)
        made.call()
        return np.array(made.output.numpy())

    def compare(
        self, challenger: Decision[Any, Any], best: Decision[Any, Any], rounds: int = ROUNDS
    ) -> float:
        """Return the challenger's time as a share of the best's, from rounds in turns."""
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

    def forget(self, keep: Decision[Any, Any]) -> None:
        """Give back the memory of kernels that lost."""
        kept = {self.default.name, keep.name}
        self._made = {name: made for name, made in self._made.items() if name in kept}

    def confirmed(self, decision: Decision[Any, Any]) -> float:
        """Return the time of a decision as a share of the default's, at worst of two settings.

        Each has kernels and buffers of its own, since where buffers lie matters too.
        """
        ratios = []
        for _ in range(2):
            self._made.clear()
            ratios.append(self.compare(decision, self.default, FINAL_ROUNDS))
        return max(ratios)

    def seconds(self, decision: Decision[Any, Any]) -> float:
        """Return the least seconds of a call, by the wall clock."""
        made = self.make(decision)
        return min(made.sample(self.clock) for _ in range(5))
