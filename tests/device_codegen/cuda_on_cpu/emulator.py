"""Runs the CUDA source of kernels on the CPU, thread by thread, to check their numbers.

The source is what is compiled for the device, word for word; g++ compiles it against ``device.h``.
Needs the toolkit's headers for half precision.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from collage_engine.kernels.program import shape_of
from collage_engine.kernels.scheduler import SCHEDULE
from collage_engine.machine.cuda import cuda_target
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.runtime.cuda import find_file

HEADER = Path(__file__).with_name("device.h")
ASYNC = r'asm volatile\("cp\.async\.(?:wait_group \d+|commit_group);"[^;]*\);'
TAGS = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")


def headers() -> Path | None:
    """Where CUDA's headers are; None: they are not here."""
    try:
        runtime = find_file(("nvidia-cuda-runtime",), "cuda_runtime_api.h").parent
    except ToolchainError:
        return None
    return runtime if (runtime / "cuda_fp16.h").exists() else None


def source_of(function: Any, architecture: str) -> str:
    """The CUDA source TVM writes for a scheduled PrimFunc."""
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    built = tvm.tirx.build(module, cuda_target(architecture))
    inside = getattr(built, "mod", built)
    (device,) = [m for m in inside.imports if str(m.kind) == "cuda"]
    return str(device.inspect_source())


def extents(function: Any) -> dict[str, int]:
    """How many blocks and threads the kernel is launched with, by thread tag."""
    found: dict[str, int] = dict.fromkeys(TAGS, 1)
    pattern = r'T\.thread_binding\((?:T\.int64\()?(\d+)\)?, thread="([\w.]+)"'
    for size, tag in re.findall(pattern, function.script()):
        found[tag] = int(size)
    return found


class Kernel:
    """A scheduled PrimFunc of a single kernel, compiled for the CPU."""

    def __init__(
        self, function: Any, folder: Path, architecture: str = "sm_80", include: str = ""
    ) -> None:
        self.source = source_of(function, architecture)
        self._extents = extents(function)
        names = [str(p.name) for p in function.params]
        (signature,) = re.findall(r"__global__[^;{]*?(\w+)\(([^)]*)\);", self.source)
        self._order = []
        types = []
        for parameter in signature[1].split(","):
            kind, name = parameter.replace("__restrict__", "").rsplit(maxsplit=1)
            types.append(kind)
            self._order.append(names.index(name.removesuffix("_ptr")))
        cast = ", ".join(f"({kind})a[{i}]" for i, kind in enumerate(types))
        # Dynamic shared memory is an array of device.h.
        kernel = re.sub(
            r"extern __shared__ (?:\w+\(\d+\) )?(\w+) (\w+)\[\];",
            r"\1* \2 = (\1*)dynamic_shared;",
            self.source,
        )
        kernel = re.sub(r"__shared__ (alignas\(\d+\)) ", r"\1 __shared__ ", kernel)
        # Copies that are waited for have been made: only their groups are left out here.
        kernel = re.sub(ASYNC, ";", kernel)
        kernel = re.sub(r"#include <(mma|cuda_fp16|cuda_bf16)\.h>", "", kernel)
        text = (
            "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
            f'#include "{HEADER}"\n{kernel}\n'
            f"static void call(void** a) {{ {signature[0]}({cast}); }}\n"
            'extern "C" void run(void** a, const unsigned* grid, const unsigned* block, int down) '
            "{ launch(call, a, grid, block, down != 0); }\n"
        )
        code, library = folder / "kernel.cpp", folder / "kernel.so"
        code.write_text(text)
        command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{include}"]
        command += [str(code), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        self._library = ctypes.CDLL(str(library))

    def __call__(self, arrays: list[np.ndarray], *, downwards: bool = False) -> None:
        """Runs every block; the arrays, in the order of the parameters, are written in place."""
        pointers = [arrays[place].ctypes.data for place in self._order]
        sizes = [self._extents[tag] for tag in TAGS]
        self._library.run(
            (ctypes.c_void_p * len(pointers))(*pointers),
            (ctypes.c_uint * 3)(*sizes[:3]),
            (ctypes.c_uint * 3)(*sizes[3:]),
            ctypes.c_int(downwards),
        )


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
            outputs = function.params[len(arguments[1]) :]
            self._calls.append((kernel, list(arguments[1]), outputs, binding.var))

    def run(self, inputs: list[np.ndarray], *, downwards: bool = False) -> np.ndarray:
        """Its single result."""
        values: dict[str, Any] = {
            str(p.name): np.ascontiguousarray(a)
            for p, a in zip(self._main.params, inputs, strict=True)
        }

        def value(argument: Any) -> np.ndarray:
            if isinstance(argument, tvm.ir.GenericConst):
                array: np.ndarray = argument.value.numpy()
                return array
            if isinstance(argument, tvm.ir.TupleGetItem):
                return value(argument.tuple_value)[argument.index]
            return values[str(argument.name)]

        name = ""
        for kernel, arguments, outputs, variable in self._calls:
            name = str(variable.name)
            arrays = [value(a) for a in arguments]
            if kernel is None:
                values[name] = arrays[0]
                continue
            results = [np.full(shape_of(output), 77, str(output.dtype)) for output in outputs]
            kernel([*arrays, *results], downwards=downwards)
            values[name] = results if len(results) > 1 else results[0]
        return values[name]
