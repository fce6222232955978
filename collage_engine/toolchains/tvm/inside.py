"""Describes a lowered module: kernels, schedules, TIR, and LLVM code when asked."""

from __future__ import annotations

import json
from typing import Any

from tvm import tirx

from collage_engine.kernels.marks import REASON, SCHEDULE, count_unscheduled
from collage_engine.toolchains.base import MODULES


def describe(module: Any) -> dict[str, Any]:
    """Return kernels with the rule that wrote each and its TIR text, and how many none could write.

    Returns:
        ``kernels``: one record a kernel, in call order, with ``reason`` where a more specific rule
        was not used. ``unscheduled``: how many run TVM's plain loops, which are tens of times
        slower. ``library_calls``: what libraries compute, where they do.
    """
    kernels = []
    for variable, function in module.functions.items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        attributes = function.attrs or {}
        kernel = {
            "name": str(variable.name_hint),
            "schedule": str(attributes[SCHEDULE]) if SCHEDULE in attributes else "unknown",
            "tir": function.script(),
        }
        if REASON in attributes:
            kernel["reason"] = str(attributes[REASON])
        kernels.append(kernel)
    calls = module.attrs[MODULES] if module.attrs and MODULES in module.attrs else []
    libraries = [json.loads(str(each["collage.inside"]())) for each in calls]
    found = {"kernels": kernels, "unscheduled": count_unscheduled(module)}
    return found | ({"library_calls": libraries} if libraries else {})
