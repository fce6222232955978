"""Holds the one ordered list of kernel rules, and decides by it and by the table in use.

A new method is added here, before the more general rules for the same problems.
"""

from __future__ import annotations

from typing import Any

import msgspec

from collage_engine.kernels.choices import plan_for
from collage_engine.kernels.cpu.depthwise import DepthwiseFirst, DepthwiseLast
from collage_engine.kernels.cpu.direct_channels.rule import DirectChannels, PackedProduct
from collage_engine.kernels.cpu.direct_spatial import DirectSpatial
from collage_engine.kernels.cpu.dots.rule import Bfloat16Dots, Int8Depthwise, Int8Dots
from collage_engine.kernels.cpu.pointwise.rule import Pointwise, RowChains
from collage_engine.kernels.cpu.runtime_matmul import RuntimeProduct
from collage_engine.kernels.cpu.winograd.rule import Winograd
from collage_engine.kernels.rule import Decision, Registry, workload_of

RULES = Registry(
    [
        DepthwiseFirst(),
        DepthwiseLast(),
        Winograd(),
        DirectSpatial(),
        DirectChannels(),
        PackedProduct(),
        RuntimeProduct(),
        Int8Depthwise(),
        Int8Dots(),
        Bfloat16Dots(),
        RowChains(),
        Pointwise(),
    ]
)


def decide(problem: Any, machine: Any) -> Decision[Any, Any] | None:
    """Returns the rule and plan for a problem: those of the tuned table in use, else the default.

    The table learns that the problem was asked for, which is how the tuner finds what there is to
    tune.

    Returns:
        The decision; None where no rule matches.

    Raises:
        PlanError: The table's choice names no rule that matches, or its plan cannot be followed.
    """
    record = plan_for(workload_of(problem, machine), msgspec.to_builtins(problem))
    default = RULES.default(problem, machine)
    if not record or default is None:
        return default
    return RULES.decide(problem, machine, record)
