"""What is known of a lowered module: kernels, schedules, TIR; LLVM code when asked."""

from __future__ import annotations

import json
from typing import Any

from tvm import tirx

from collage_engine.kernels.scheduler import REASON, SCHEDULE
from collage_engine.toolchains.base import MODULES


def describe(module: Any) -> dict[str, Any]:
    """Kernels in call order with the schedule of each and its TIR text."""
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
    return {"kernels": kernels} | ({"library_calls": libraries} if libraries else {})


def llvm_source(module: Any, name: str, kind: str = "ll") -> str:
    """LLVM IR (``ll``) or assembly (``asm``) of one kernel, compiled for this machine."""
    import tvm

    from collage_engine.kernels.target import cpu_target

    for variable, function in module.functions.items():
        if str(variable.name_hint) == name and isinstance(function, tirx.PrimFunc):
            alone = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
            built = tvm.tirx.build(alone, tvm.target.Target(cpu_target()))
            return str(built.inspect_source(kind))
    raise KeyError(f"no kernel {name}")
