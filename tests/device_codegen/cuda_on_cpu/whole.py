"""Runs all kernels of a lowered CUDA module on the CPU, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tvm

from collage_engine.kernels.program import shape_of
from collage_engine.kernels.scheduler import SCHEDULE
from tests.device_codegen.cuda_on_cpu.emulator import Kernel


class Emulated:
    """``main`` of a module whose kernels are scheduled."""

    def __init__(self, module: tvm.IRModule, folder: Path, include: str) -> None:
        self._main = module["main"]
        self._calls: list[tuple[Kernel | None, list[Any], Any, Any]] = []
        self.rules: list[str] = []
        """What scheduled each kernel, in order."""
        for number, binding in enumerate(
            b for block in self._main.body.blocks for b in block.bindings
        ):
            arguments = list(getattr(binding.value, "args", ()))
            if len(arguments) < 2 or str(binding.value.op.name) != "relax.call_tir":
                self._calls.append((None, [binding.value], None, binding.var))
                continue
            function = module[arguments[0]]
            place = folder / f"kernel{number}"
            place.mkdir()
            kernel = Kernel(function, place, include=include)
            self.rules.append(str(function.attrs[SCHEDULE]))
            self._calls.append((kernel, list(arguments[1]), function.params[-1], binding.var))

    def run(self, inputs: list[np.ndarray], *, downwards: bool = False) -> np.ndarray:
        """Its single result."""
        values = {
            str(p.name): np.ascontiguousarray(a)
            for p, a in zip(self._main.params, inputs, strict=True)
        }

        def value(argument: Any) -> np.ndarray:
            if isinstance(argument, tvm.ir.GenericConst):
                array: np.ndarray = argument.value.numpy()
                return array
            return values[str(argument.name)]

        name = ""
        for kernel, arguments, output, variable in self._calls:
            name = str(variable.name)
            arrays = [value(a) for a in arguments]
            if kernel is None:
                values[name] = arrays[0]
                continue
            result = np.full(shape_of(output), 77, str(output.dtype))
            kernel([*arrays, result], downwards=downwards)
            values[name] = result
        return values[name]
