"""Defines the parameters of a product of two values that are known only at run time."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.kernels.rule import Plan, parameter


@dataclass(frozen=True)
class RuntimePlan(Plan):
    """The parameters of a product of two values that are known only at run time."""

    block: int = parameter(least=1, most=8)
    """Columns per block, counted in vectors."""
    rows: int = parameter(least=1)
    """Rows that a register tile covers."""
    pack: bool = parameter()
    """Whether the right operand is copied by blocks of columns first."""
