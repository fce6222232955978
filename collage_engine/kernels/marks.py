"""Attributes of a PrimFunc that say how it was scheduled, and what can be read from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tvm

SCHEDULE = "collage.schedule"
"""PrimFunc attribute: the name of the rule that wrote it, or ``UNSCHEDULED``."""
REASON = "collage.reason"
"""PrimFunc attribute: why a more specific rule was not used."""
UNSCHEDULED = "plain"
"""The schedule of a kernel that no rule could write: TVM's plain loops, tens of times slower."""


def count_unscheduled(module: tvm.IRModule) -> int:
    """Count the kernels of a module that no rule could write, so that TVM's plain loops run."""
    count = 0
    for function in module.functions.values():
        attributes = getattr(function, "attrs", None)
        if attributes and SCHEDULE in attributes:
            count += str(attributes[SCHEDULE]) == UNSCHEDULED
    return count
