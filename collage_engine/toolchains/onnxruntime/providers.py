"""Finds ONNX Runtime's execution provider for NVIDIA devices, and the libraries that it needs.

It comes with the package onnxruntime-gpu for CUDA 13. A session that it runs keeps to the CPU's
provider for the operators that it does not take. That for TensorRT is not used: TensorRT is a
toolchain of its own.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

from collage_engine.machine.cuda import cuda_probe
from collage_engine.records.precision import TF32
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.runtime.builder import find_in_wheel
from collage_engine.toolchains.runtime.cuda import (
    CUDART,
    RUNTIME_WHEELS,
    find_file,
    nvrtc,
)

_LOG = logging.getLogger(__name__)

GPU_PACKAGE = "onnxruntime-gpu"
_OWN = ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so")
_CUDNN_WHEELS = ("nvidia-cudnn-cu13",)
_NEEDED = (
    (CUDART, RUNTIME_WHEELS),
    ("libcublasLt.so.13", ("nvidia-cublas", "nvidia-cublas-cu13")),
    ("libcublas.so.13", ("nvidia-cublas", "nvidia-cublas-cu13")),
    ("libcurand.so.10", ("nvidia-curand", "nvidia-curand-cu13")),
    ("libcudnn.so.9", _CUDNN_WHEELS),
)
"""SONAME and wheels of what the provider needs, in the order in which it is opened."""


@cache
def provider_libraries() -> tuple[tuple[str, Path], ...]:
    """Return the name and the file of each of the provider's libraries, in the order of opening.

    Raises:
        ToolchainError: A library is not here; the text names the package to install.
    """
    libraries = [(name, find_file(wheels, name)) for name, wheels in _NEEDED]
    # libcudnn.so.9 opens the libraries of its engines by name, and ends the process where they do
    # not lie beside it.
    engines = sorted(find_file(_CUDNN_WHEELS, "libcudnn.so.9").parent.glob("libcudnn_*.so.9"))
    libraries += [(file.name, file) for file in (*engines, *nvrtc())]
    return (*libraries, *((name, find_in_wheel(GPU_PACKAGE, name)) for name in _OWN))


@cache
def has_provider() -> bool:
    """Tell whether the provider's libraries are here, and a device to run them on."""
    try:
        provider_libraries()
    except ToolchainError as error:
        _LOG.info("ONNX Runtime's provider for CUDA is not here: %s", error)
        return False
    return bool(cuda_probe().devices)


def provider_plan(instance: ToolchainInstance) -> dict[str, Any]:
    """Return what a plan says of the provider of an instance; empty on the CPU."""
    if not instance.architecture:
        return {}
    rounded = "1" if instance.precision == TF32 else "0"
    return {"libraries": [name for name, _ in _NEEDED], "use_tf32": rounded}
