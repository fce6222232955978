"""Runs a placement's partitions on the host beside those on an NVIDIA device."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage_engine.records.graph import TensorType
from collage_engine.records.toolchain import RuntimeLibrary
from collage_engine.toolchains.runtime import builder
from collage_engine.toolchains.runtime.cuda import cuda_source

PREFIX = "vm.builtin.collage_host"
"""TVM leaves calls of names that begin so out of CUDA graphs."""


def source() -> builder.RuntimeSource:
    """Return the source of the module that runs partitions on the host.

    Raises:
        ToolchainError: CUDA's runtime or its headers are not here.
    """
    return cuda_source("host", Path(__file__).parent / "host_src" / "host_module.cc")


def library() -> RuntimeLibrary:
    """Return the compiled module as a library that an artifact carries."""
    file = builder.build(source())
    return RuntimeLibrary(
        file=str(file),
        name=file.name,
        toolchain="host",
        version="1",
        licence="Apache-2.0",
        linked=True,
    )


def module_of(
    values: Sequence[TensorType],
    parts: Sequence[tuple[Sequence[int], Sequence[int]]],
    executables: Sequence[Any],
) -> Any:
    """Return the module that runs partitions on the host.

    Args:
        values: Types of all values on the host, by their numbers.
        parts: Per partition, the numbers of the values that it reads and that it makes.
        executables: Per partition, what ``relax.build`` made of it for the host.
    """
    import tvm_ffi

    kind = builder.load(source())
    plan = {
        "values": [{"shape": list(kind.shape), "dtype": kind.dtype} for kind in values],
        "parts": [{"inputs": list(i), "outputs": list(o)} for i, o in parts],
    }
    text = json.dumps(plan, separators=(",", ":"))
    module = tvm_ffi.get_global_func(f"{kind}.create")(PREFIX, text, b"")
    for executable in executables:
        module.import_module(executable)
    return module
