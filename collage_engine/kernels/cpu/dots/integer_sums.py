"""Describes the sums of a quantised convolution or product, with weights and zero points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collage_engine.kernels.cpu.dots.problem import DotProblem
from collage_engine.kernels.registry import decide
from collage_engine.kernels.rule import Decision, PlanError
from collage_engine.kernels.target import Cpu


@dataclass(frozen=True)
class IntegerSums:
    """An integer convolution over channels-last data, or a product over the last axis."""

    weights: np.ndarray
    """The weight as int8: output channels, input channels of a group, then the kernel."""
    decision: Decision[DotProblem, Any]
    cpu: Cpu
    axis = -1
    """Axis of the result along which the output channels lie."""

    @staticmethod
    def of(problem: DotProblem, weights: np.ndarray, cpu: Cpu) -> IntegerSums:
        """Returns the sums as the rules decide to write them.

        Raises:
            PlanError: No rule writes them.
        """
        decision = decide(problem, cpu)
        if decision is None:
            raise PlanError(f"no kernel rule matches {problem}")
        return IntegerSums(weights, decision, cpu)

    @property
    def out(self) -> tuple[int, ...]:
        """Returns the shape of the result, channels last."""
        return self.decision.problem.out_shape

    def correction(self) -> np.ndarray:
        """Returns what the sums lack because the data's zero is not 0.

        Returns:
            −zero · Σ w for each output channel, in int32.
        """
        totals = self.weights.astype(np.int64).reshape(self.weights.shape[0], -1).sum(1)
        return (-self.decision.problem.zero * totals).astype(np.int32)

    def packed(self) -> np.ndarray:
        """Returns the weights as the kernel reads them."""
        return self.decision.pack(self.cpu, self.weights)

    def sums(self, data: Any, weight: Any) -> Any:
        """Returns the plain sums over the packed weight."""
        return self.decision.reference(data, weight)
