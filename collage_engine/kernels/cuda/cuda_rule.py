"""Extends the protocol of kernel rules for NVIDIA devices.

A rule for a device writes its loops as a TIR schedule of the function that TVM fused. So that whole
function is what ``KernelRule.write`` takes as the epilogue, and it returns the scheduled one.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.rule import Decision, KernelRule, PlanT, ProblemT


class CudaRule(KernelRule[ProblemT, PlanT, Gpu]):
    """One method of writing kernels for NVIDIA devices."""

    @abstractmethod
    def bare_operands(self, problem: ProblemT) -> tuple[Any, ...]:
        """Returns the operands of a kernel of its own for the problem, as TE placeholders."""

    def gives_parts(self, plan: PlanT) -> bool:
        """Tells whether the kernel gives parts of sums, which a second kernel has to add."""
        return False

    def adding_s(self, problem: ProblemT, plan: PlanT) -> float:
        """Returns the seconds that adding the parts of sums takes, as an estimate."""
        return 0.0


def bare_kernel(decision: Decision[Any, Any]) -> Any:
    """Returns the scheduled kernel of a problem by itself.

    Its operands are plain arrays of the same sizes. A convolution as a product reads its image
    another way, so what tuning finds here is measured again as a candidate before it counts.

    Returns:
        The PrimFunc; its last parameter is the result.

    Raises:
        ToolchainError: The plan cannot be followed.
    """
    from tvm import te

    rule = decision.rule
    assert isinstance(rule, CudaRule)
    operands = rule.bare_operands(decision.problem)
    result = decision.reference(*operands)
    return decision.write(te.create_prim_func([*operands, result]))
