"""Runs partitions by a function over arrays, for toolchains that are written in Python alone.

This file lies in an artifact as ``collage_NAME.py``, beside the toolchain's own file
``NAME_session.py``, and is run before ``model.so`` is loaded. It needs tvm_ffi, NumPy and what the
session imports, nothing of Collage Explorer.
"""

from __future__ import annotations

import ctypes
import json
import math
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

PREFIX = "collage_"
"""What this file's name begins with in an artifact, before the toolchain's name."""
SESSION = "_session.py"
"""What the name of the toolchain's own file ends in, after the toolchain's name."""


def opener_name(toolchain: str) -> str:
    """Return the name of the global function that opens a toolchain's partitions."""
    return f"collage.python.{toolchain}"


def _address(pointer: Any) -> int:
    """Return an opaque pointer of tvm_ffi as a number; a null one comes as None."""
    return int(getattr(pointer, "value", pointer) or 0)


def _array(spec: Mapping[str, Any], address: int) -> np.ndarray:
    """Return the memory at an address as an array of a type and shape."""
    dtype, shape = np.dtype(spec["dtype"]), tuple(spec["shape"])
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_byte * size).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)


def register(toolchain: str, session_file: Path) -> None:
    """Make a toolchain's session known to the runtime modules of this process.

    Args:
        toolchain: The toolchain's name.
        session_file: A Python file with a function ``open_model(model, threads, options)``, which
            returns a function that takes the inputs as a list of arrays and returns the outputs;
            where the plan says ``on_device``, one of a CUDA stream and the addresses of both.

    Raises:
        ImportError: The file needs a package that is not installed.
    """
    import tvm_ffi

    open_model = runpy.run_path(str(session_file))["open_model"]

    def open_partition(plan_text: Any, data: Any) -> Callable[..., None]:
        plan = json.loads(str(plan_text))
        run = open_model(bytes(data), plan["threads"], plan["options"])
        if plan.get("on_device"):
            return lambda *pointers: run(_address(pointers[0]), [*map(_address, pointers[1:])])
        specs = plan["inputs"] + plan["outputs"]
        inputs = len(plan["inputs"])

        def call(*pointers: Any) -> None:
            addresses = map(_address, pointers)
            arrays = [_array(*each) for each in zip(specs, addresses, strict=True)]
            results = run(arrays[:inputs])
            for target, result in zip(arrays[inputs:], results, strict=True):
                if result.shape != target.shape:
                    raise ValueError(
                        f"{toolchain} returns an output of shape {list(result.shape)}, and "
                        f"{list(target.shape)} was expected"
                    )
                np.copyto(target, result, casting="no")

        return call

    tvm_ffi.register_global_func(opener_name(toolchain), open_partition, override=True)


if __name__ == "collage_python_part":
    _file = Path(__file__)
    _toolchain = _file.stem.removeprefix(PREFIX)
    register(_toolchain, _file.with_name(_toolchain + SESSION))
