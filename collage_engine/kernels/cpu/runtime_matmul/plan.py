"""The parameters of a product of two values that are known only at run time."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.kernels.rule import Plan, parameter


@dataclass(frozen=True)
class RuntimePlan(Plan):
    """It parametrises a product of two values."""

    block: int = parameter(least=1, most=8)
    """Columns per block, in vectors."""
    rows: int = parameter(least=1)
    """Rows of a register tile."""
    pack: bool = parameter()
    """Whether the right operand is copied by blocks of columns first."""
