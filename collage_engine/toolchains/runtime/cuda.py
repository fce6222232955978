"""Finds CUDA's files and probes devices, for all toolchains for NVIDIA devices."""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from collage_engine.machine.cuda import cuda_probe, generation
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import (
    OperatorSet,
)
from collage_engine.records.precision import BFLOAT16, FLOAT16, TF32, in_precision
from collage_engine.records.toolchain import (
    RuntimeLibrary,
    Target,
    ToolchainInstance,
    ToolchainState,
)
from collage_engine.support.errors import ToolchainError, compiler_reason
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.runtime import builder
from collage_engine.toolchains.runtime.builder import (
    RuntimeSource,
    find_in_wheel,
    header_version,
    wheel_version,
)
from collage_engine.toolchains.runtime.kept_files import digest_of, keep_kernel, read_kernel
from collage_engine.toolchains.runtime.places import Places, blank
from collage_engine.toolchains.runtime.products import Dialect
from collage_engine.toolchains.runtime.toolchain import CppToolchain, PatternToolchain

SHARED = Path(__file__).resolve().parent / "cuda_src"
SYSTEM = (Path("/usr/local/cuda"), Path("/usr"))
"""Folders in which a system installation puts include/ and lib64/."""
LIBRARY_FOLDERS = ("lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu")
RUNTIME_WHEELS = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13")
NVRTC_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13")
LICENCE = "NVIDIA-CUDA-EULA"
CUDART = "libcudart.so.13"
FIRST_TF32 = 80
"""Architecture (Ampere) whose tensor cores first took tf32 and bfloat16 (CUDA C++ Programming
Guide, compute capabilities)."""


def find_file(packages: tuple[str, ...], name: str, folder: str = "") -> Path:
    """Find a file of CUDA's in the first wheel that carries it, else in a system installation.

    Args:
        packages: Distributions that may carry it, the one to install first.
        name: The file's name.
        folder: The end of its folder.

    Raises:
        ToolchainError: The file is not here; the text names the wheel to install.
    """
    for package in packages:
        with contextlib.suppress(ToolchainError):
            return find_in_wheel(package, name, folder)
    for root in SYSTEM:
        for subfolder in ("include", "include/cccl", *LIBRARY_FOLDERS):
            if (root / subfolder / folder / name).exists():
                return (root / subfolder / folder / name).resolve()
    raise ToolchainError(f"{name} is not here (package {packages[0]})")


@cache
def cuda_runtime() -> tuple[Path, Path]:
    """Return (folder of the CUDA runtime's headers, libcudart.so.13)."""
    header = find_file(RUNTIME_WHEELS, "cuda_runtime_api.h")
    return header.parent, find_file(RUNTIME_WHEELS, CUDART)


@cache
def cuda_includes() -> tuple[Path, ...]:
    """Return the folders that compiling against the CUDA runtime needs: its headers, and theirs."""
    folders = [cuda_runtime()[0]]
    for package, name, folder in (
        ("nvidia-cuda-crt", "host_defines.h", "crt"),
        ("nvidia-cuda-cccl", "target", "nv"),
    ):
        with contextlib.suppress(ToolchainError):  # a system has them beside the runtime's
            folders.append(find_file((package,), name, folder).parents[1])
    return tuple(dict.fromkeys(folders))


def cudart_library(toolchain: str) -> RuntimeLibrary:
    """Return the CUDA runtime, as a library that an artifact carries."""
    _, library = cuda_runtime()
    return RuntimeLibrary(
        file=str(library),
        name=CUDART,
        toolchain=toolchain,
        version="13",
        licence=LICENCE,
    )


def nvrtc() -> list[Path]:
    """Return the compiler that some of cuDNN's engines call and open by name.

    Where it is not installed the list is empty, and cuDNN has fewer engines.
    """
    try:
        library = find_file(NVRTC_WHEELS, "libnvrtc.so.13")
    except ToolchainError:
        return []
    return [library, *sorted(library.parent.glob("libnvrtc-builtins.so.13.*"))]


def by_nvrtc(source: str, architecture: str) -> bytes:
    """Compile CUDA source for an architecture.

    Returns:
        The cubin.

    Raises:
        ToolchainError: There is no compiler, or it refuses the source; the sentence has its first
            error.
    """
    libraries = nvrtc()
    if not libraries:
        raise ToolchainError(f"no CUDA compiler: pip install {NVRTC_WHEELS[0]}")
    path, *builtins = libraries
    for builtin in builtins:
        ctypes.CDLL(str(builtin))  # it looks for them by name, where only a system has them
    library = ctypes.CDLL(str(path))
    program = ctypes.c_void_p()
    options = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        "-default-device",
        *(f"-I{folder}" for folder in cuda_includes()),
    ]
    names = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    if library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None
    ):
        raise ToolchainError("nvrtc could not start")
    try:
        status = library.nvrtcCompileProgram(program, len(options), names)
        size = ctypes.c_size_t()
        if status:
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise ToolchainError(
                f"nvrtc refuses the kernels: {compiler_reason(log.value.decode())}"
            )
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


HEADERS = {
    "float32": (),
    "float16": ("cuda_fp16.h",),
    "bfloat16": ("cuda_bf16.h",),
    "float16 on tensor cores": ("cuda_fp16.h", "mma.h"),
}
"""The headers that TVM's kernels include, by what they compute in."""
PACKAGE_OF = {"nv/": "nvidia-cuda-cccl", "cuda/std/": "nvidia-cuda-cccl", "crt/": "nvidia-cuda-crt"}
"""The package of a header that CUDA's own include, by the folder; the others are the runtime's."""


def against_kernels(architecture: str) -> str | None:
    """Return why one kernel of each kind does not compile here, and the package that is missing.

    Args:
        architecture: The device's architecture.

    Returns:
        A sentence; None where all compile.
    """
    for kind, headers in HEADERS.items():
        includes = "".join(f"#include <{header}>\n" for header in headers)
        try:
            by_nvrtc(f'{includes}extern "C" __global__ void kernel() {{}}', architecture)
        except ToolchainError as error:
            missing = re.search(r'open source file "([^"]+)"', str(error))
            if missing is None:
                return f"its kernels in {kind} do not compile: {error}"
            packages = [p for begin, p in PACKAGE_OF.items() if missing[1].startswith(begin)]
            package = (packages or RUNTIME_WHEELS)[0]
            return f"its kernels in {kind} need {missing[1]}: pip install {package}"
    return None


def device_state(
    toolchain: CppToolchain, check: Callable[[], None] = lambda: None
) -> ToolchainState:
    """Return the state of a toolchain for NVIDIA devices: available where a device is.

    Args:
        toolchain: The toolchain.
        check: Raises ``ToolchainError`` where the library does not load.
    """
    probe = cuda_probe()
    devices = probe.devices
    version = None
    try:
        version = toolchain.version()
        source = toolchain.source()
        if devices:
            check()
            builder.load(source)
        else:  # compiled when something is to be exported, not to say that it could be
            builder.find_compiler()
    except ToolchainError as error:
        reason = str(error)
        return ToolchainState(name=toolchain.name, available=False, version=version, reason=reason)
    return ToolchainState(
        name=toolchain.name,
        available=bool(devices),
        version=version,
        reason=probe.reason,
        install=None if devices else "install the NVIDIA driver",
        devices=tuple(device.record().name for device in devices),
        builds=True,
    )


def on_device(
    toolchain: str, architecture: str, lower: str | None
) -> tuple[ToolchainInstance, ...]:
    """Return the instances for a device: the plain one, and one in a lower precision, if any."""
    plain = ToolchainInstance(toolchain=toolchain, device="cuda:0", architecture=architecture)
    return (plain,) if lower is None else (plain, in_precision(plain, lower))


def cuda_source(
    toolchain: str,
    main: Path,
    version: str = "",
    headers: Sequence[Path] = (),
    libraries: Sequence[tuple[str, Path]] = (),
) -> RuntimeSource:
    """Return the source of a runtime, with CUDA's own runtime and libraries to lie beside it.

    Args:
        toolchain: The toolchain's name.
        main: The source.
        version: The library's version.
        headers: A header of each library that tells its version, from the folder of all.
        libraries: The SONAME and the file of each library.
    """
    folder, cudart = cuda_runtime()
    beside = (*libraries, (CUDART, cudart))
    return RuntimeSource(
        toolchain=toolchain,
        main=main,
        library_version=version,
        includes=(*cuda_includes(), *(header.parent for header in headers)),
        headers=(folder / "cuda_runtime_api.h", *headers),
        links=tuple(file for _, file in beside),
        shared=(SHARED,),
        beside=beside,
    )


class CudaToolchain(PatternToolchain):
    """The base of toolchains whose C++ runtime drives an NVIDIA device.

    Such a library runs products or convolutions, and some operators only along with them, as its
    ``dialect`` says. It is available where a device is; where only its
    packages are, it still compiles, and what it compiled can be exported
    (``ToolchainState.builds``).
    """

    main: Path
    """The file of its C++ runtime (``RuntimeSource.main``)."""
    wheels: tuple[str, ...] = ()
    """Distributions that carry its library, the one to install first."""
    library_name: str = ""
    """The library's SONAME; empty: it has none beside its kernels."""
    version_header: str = ""
    """The header that states the library's version; empty: there is none."""
    version_macros: tuple[str, str] = ("", "PATCH")
    """What the names of its macros begin with, and what that of the third number goes on with."""
    dialect: Dialect
    """What its library runs; ``pattern`` is that of this."""
    choice: str = ""
    """The name, in a step of its plans, of what its runtime chooses by timing."""

    def library(self) -> Path:
        """Return the path of the library itself.

        Raises:
            ToolchainError: The library is not here; the text names the wheel to install.
        """
        return find_file(self.wheels, self.library_name)

    def version(self) -> str:
        """Return the version of the library: that of its wheel, else that of a header."""
        header = find_file(self.wheels, self.version_header)
        for package in self.wheels:
            with contextlib.suppress(ToolchainError):
                return wheel_version(package)
        return header_version(header, *self.version_macros)

    def headers(self) -> list[Path]:
        """Return a header of each library that tells its version, from the folder of all."""
        return [find_file(self.wheels, self.version_header)] if self.version_header else []

    def source(self) -> RuntimeSource:
        """Return the runtime's source, with CUDA's runtime and the library to lie beside it."""
        libraries = [(self.library_name, self.library())] if self.library_name else []
        return cuda_source(self.name, self.main, self.version(), self.headers(), libraries)

    def runtime_libraries(self) -> tuple[RuntimeLibrary, ...]:
        """Return the libraries that its runtime links, and the runtime itself."""
        own = (self.carried(self.library(), self.library_name),) if self.library_name else ()
        return (*own, cudart_library(self.name), self.own_library())

    def probe(self) -> ToolchainState:
        """Implement ``Toolchain.probe``."""
        return device_state(self)

    def instances(self, target: Target, precision: str) -> tuple[ToolchainInstance, ...]:
        """Return its configurations; see ``Toolchain.instances``."""
        lower = self.rounds_to(target.architecture, precision)
        return on_device(self.name, target.architecture, lower)

    def rounds_to(self, architecture: str, precision: str) -> str | None:
        """Return what it rounds the operands of float32 products to; None: it does not.

        Args:
            architecture: Of the device, e.g. sm_90a.
            precision: The lowest that the run admits. Tf32 keeps as many digits as float16, and
                more than bfloat16.
        """
        lower = (TF32, FLOAT16, BFLOAT16)
        return TF32 if precision in lower and generation(architecture) >= FIRST_TF32 else None

    def plan(self, function: Function) -> tuple[dict[str, Any], bytes]:
        """Implement ``CppToolchain.plan``."""
        places = Places(function.graph, function.inputs, function.outputs, function.constant)
        return self.dialect.plan_of(places, function.nodes, function.instance.precision)

    def finish(self, function: Function, plan: dict[str, Any], weights: bytes) -> Any:
        """Return the module of a function; what was chosen for such steps before is not timed anew.

        A device times the dozen ways of each step when a module is made, and every cover that is
        tried would repeat that.
        """
        names = [self._kept_as(step) for step in plan["steps"]]
        kept = [read_kernel(name) for name in names]
        for step, choice in zip(plan["steps"], kept, strict=True):
            if choice is not None:
                step[self.choice] = choice.decode()
        module = super().finish(function, plan, weights)
        if cuda_probe().devices and None in kept:
            _, made, _ = self.unpack(module)
            for name, step in zip(names, made["steps"], strict=True):
                if self.choice in step:
                    keep_kernel(name, str(step[self.choice]).encode())
        return module

    def _kept_as(self, step: dict[str, Any]) -> str:
        """Return the name under which the choice for a step is kept on this machine's device."""

        def what(value: Any) -> Any:
            """Leave out names, and where operands lie."""
            if not isinstance(value, dict):
                return value
            return {k: what(v) for k, v in value.items() if k not in ("name", "where", "at")}

        devices = [device.record().fingerprint for device in cuda_probe().devices[:1]]
        parts = (self.choice, self.version(), *devices, json.dumps(what(step), sort_keys=True))
        return digest_of("choice", self.name, *parts)

    def dry_plan(self, graph: DataflowGraph, nodes: OperatorSet) -> dict[str, Any]:
        """Return the plan of some calls, made from the shapes of their weights only.

        Raises:
            UnsupportedError: They are no partition for it, in whatever precision.
        """
        places = Places(graph, *graph.boundary(nodes), blank(graph), dry=True)
        return self.dialect.plan_of(places, nodes)[0]

    def check_calls(self, graph: DataflowGraph, nodes: OperatorSet) -> None:
        """Implement ``PatternToolchain.check_calls``, by the plan of the calls."""
        self.dry_plan(graph, nodes)
