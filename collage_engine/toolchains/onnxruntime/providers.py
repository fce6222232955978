"""Finds ONNX Runtime's execution providers for NVIDIA devices, and the libraries that they need.

They come with the package onnxruntime-gpu for CUDA 13. A session that one of them runs keeps to the
CPU's provider for the operators that it does not take.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

from collage_engine.machine.cuda import cuda_probe, generation
from collage_engine.records.precision import BFLOAT16, FLOAT16, TF32, in_precision
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.runtime.builder import find_in_wheel
from collage_engine.toolchains.runtime.cuda import (
    CUDART,
    FIRST_TF32,
    RUNTIME_WHEELS,
    find_file,
    nvrtc,
)

_LOG = logging.getLogger(__name__)

GPU_PACKAGE = "onnxruntime-gpu"
PROVIDER = "provider"
"""Option of an instance on an NVIDIA device: its provider, where it is not the one for CUDA."""
CUDA, TENSORRT = "cuda", "tensorrt"
"""The providers. TensorRT's rounds products of float32 to tf32 wherever the device can, and has no
option against it (onnxruntime-gpu 1.31.1): it is exact on no device that has tf32."""
_SHARED = "libonnxruntime_providers_shared.so"
_CUDNN_WHEELS = ("nvidia-cudnn-cu13",)
_NEEDED = (
    (CUDART, RUNTIME_WHEELS),
    ("libcublasLt.so.13", ("nvidia-cublas", "nvidia-cublas-cu13")),
    ("libcublas.so.13", ("nvidia-cublas", "nvidia-cublas-cu13")),
    ("libcurand.so.10", ("nvidia-curand", "nvidia-curand-cu13")),
    ("libcudnn.so.9", _CUDNN_WHEELS),
)
"""SONAME and wheels of what the CUDA provider needs, in the order in which it is opened."""
_NEEDED_BY_TENSORRT = (
    ("libnvinfer.so.10", ("tensorrt-cu13-libs",)),
    ("libnvonnxparser.so.10", ("tensorrt-cu13-libs",)),
)


@cache
def provider_libraries(provider: str) -> tuple[tuple[str, Path], ...]:
    """Return the name and the file of each library of a provider, in the order of opening.

    Raises:
        ToolchainError: A library is not here; the text names the package to install.
    """
    own = [_SHARED, f"libonnxruntime_providers_{CUDA}.so"]
    needed = [*_NEEDED]
    if provider == TENSORRT:
        own.append(f"libonnxruntime_providers_{TENSORRT}.so")
        needed += _NEEDED_BY_TENSORRT
    libraries = [(name, find_file(wheels, name)) for name, wheels in needed]
    # libcudnn.so.9 opens the libraries of its engines by name, and ends the process where they do
    # not lie beside it.
    engines = sorted(find_file(_CUDNN_WHEELS, "libcudnn.so.9").parent.glob("libcudnn_*.so.9"))
    libraries += [(file.name, file) for file in (*engines, *nvrtc())]
    return (*libraries, *((name, find_in_wheel(GPU_PACKAGE, name)) for name in own))


def opened_first(provider: str) -> list[str]:
    """Return the names of the libraries that must be open before a provider is asked for."""
    needed = [*_NEEDED, *(_NEEDED_BY_TENSORRT if provider == TENSORRT else ())]
    return [name for name, _ in needed]


@cache
def present_providers() -> tuple[str, ...]:
    """Return the providers whose libraries are here, where there is a device to run them on."""
    providers = []
    for provider in (CUDA, TENSORRT):
        try:
            provider_libraries(provider)
        except ToolchainError as error:
            _LOG.info("ONNX Runtime's provider %s is not here: %s", provider, error)
        else:
            providers.append(provider)
    return tuple(providers) if providers and cuda_probe().devices else ()


def device_instances(
    toolchain: str, architecture: str, precision: str
) -> tuple[ToolchainInstance, ...]:
    """Return the instances of the providers that are present.

    Args:
        toolchain: The toolchain's name.
        architecture: Of the device, e.g. sm_90a.
        precision: The lowest that the run admits; products of float32 are rounded to tf32 at most,
            which keeps as many digits as float16.
    """
    instances = []
    has_tf32 = generation(architecture) >= FIRST_TF32
    admits_tf32 = has_tf32 and precision in (TF32, FLOAT16, BFLOAT16)
    for provider in present_providers():
        plain = ToolchainInstance(
            toolchain=toolchain,
            config=() if provider == CUDA else ((PROVIDER, provider),),
            device="cuda:0",
            architecture=architecture,
        )
        if provider == CUDA or not has_tf32:
            instances.append(plain)
        if admits_tf32:
            instances.append(in_precision(plain, TF32))
    return tuple(instances)


def provider_of(instance: ToolchainInstance) -> str:
    """Return the provider of an instance for NVIDIA devices; empty on the CPU."""
    return instance.option(PROVIDER, CUDA) if instance.architecture else ""


def provider_plan(instance: ToolchainInstance) -> dict[str, Any]:
    """Return what a plan says of the provider of an instance; empty on the CPU."""
    provider = provider_of(instance)
    if not provider:
        return {}
    rounded = "1" if instance.precision == TF32 else "0"
    chosen = [{"name": CUDA, "options": {"use_tf32": rounded}}]
    if provider == TENSORRT:
        chosen.insert(0, {"name": TENSORRT, "options": {}})
    return {"libraries": opened_first(provider), "providers": chosen}
