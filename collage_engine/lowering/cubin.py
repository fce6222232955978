"""Device code for NVIDIA: CUDA source → cubin, put into a module that carries source.

TVM's wheel compiles kernels when a device is there, and leaves their source in the module when
not, to be compiled by Python on the machine that loads it. An artifact has to run without Python
and without a compiler, so whatever is exported is compiled here, by nvrtc.

Compiled code is kept between processes and runs, with the processor's (``kernel_cache.py``).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from collage_engine.lowering.kernel_cache import digest_of, keep_kernel, read_kernel
from collage_engine.support.errors import ToolchainError, compiler_reason
from collage_engine.toolchains.runtime.cuda import cuda_includes, nvrtc

KIND = b"cuda"
"""Module kind under which TVM serialises device code: format, kernels, code."""
SOURCE = b"cuda"
"""Format of a module that still carries source."""


def compile_cubin(source: str, architecture: str) -> bytes:
    """Return the cubin of CUDA source. Equal sources are compiled once, and kept on disk.

    Args:
        source: The source.
        architecture: The device's architecture, such as ``sm_90a``.

    Raises:
        ToolchainError: There is no compiler, or it refuses the source; the sentence has its first
            error.
    """
    libraries = nvrtc()
    if not libraries:
        raise ToolchainError("no CUDA compiler: pip install nvidia-cuda-nvrtc")
    key = digest_of("cubin", str(libraries[0].stat().st_size), architecture, source)
    code = read_kernel(key)
    if code is None:
        code = _by_nvrtc(libraries, source, architecture)
        keep_kernel(key, code)
    return code


def compile_for_tvm(architecture: str) -> None:
    """Have TVM compile its kernels by ``compile_cubin``, also where a device is there.

    TVM's own way is nvrtc through the package cuda-bindings, which nothing else here needs, with
    fast mathematics, so that results differ from what is exported without a device.

    Args:
        architecture: What is compiled for from now on, since TVM does not say it.
    """
    if not _compiles_for:
        import tvm_ffi

        tvm_ffi.register_global_func(
            TVM_CALLBACK, lambda code: compile_cubin(str(code), _compiles_for[-1]), override=True
        )
    _compiles_for[:] = [architecture]


TVM_CALLBACK = "tvm_callback_cuda_compile"
"""Global function by which TVM compiles CUDA source, where there is one."""
_compiles_for: list[str] = []
"""The architecture that ``compile_for_tvm`` was last called with; empty: it was not called."""


def _by_nvrtc(libraries: Sequence[Path], source: str, architecture: str) -> bytes:
    path, *builtins = libraries
    for each in builtins:
        ctypes.CDLL(str(each))  # it looks for them by name, where only a system has them
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


def with_cubins(
    blob: bytes, architecture: str, compile_: Callable[[str, str], bytes] = compile_cubin
) -> bytes:
    """Return a packed blob of imported modules in which CUDA source is replaced by compiled code.

    The blob (``runtime.ModulePackImportsToTensor``) is a length and then, for each module, its kind
    and its bytes, each behind a length. A CUDA module's bytes are the format, the table of kernels
    and the code. Other modules, and CUDA modules that are compiled, stay as they are.

    Args:
        blob: The bytes of the blob.
        architecture: The device's architecture, such as ``sm_90a``.
        compile_: Compiles a source for an architecture.

    Raises:
        ToolchainError: A source does not compile, or cannot be found in the blob.
    """
    done = bytearray(blob[8:])
    head = struct.pack("<Q", len(KIND)) + KIND
    start = 0
    while (found := done.find(head, start)) >= 0:
        at = found + len(head)
        (size,) = struct.unpack_from("<Q", done, at)
        payload = bytes(done[at + 8 : at + 8 + size])
        start = at
        if len(payload) != size:
            continue  # the same bytes by chance, inside another module
        changed = _compiled_payload(payload, architecture, compile_)
        if changed is None:
            continue
        done[at : at + 8 + size] = struct.pack("<Q", len(changed)) + changed
        start = at + 8 + len(changed)
    return struct.pack("<Q", len(done)) + bytes(done)


def _compiled_payload(
    payload: bytes, architecture: str, compile_: Callable[[str, str], bytes]
) -> bytes | None:
    """Return a CUDA module's bytes with the source compiled; None when these are not such bytes."""
    head = struct.pack("<Q", len(SOURCE)) + SOURCE
    if not payload.startswith(head):
        return None
    # The code is the last field: its length leads to the very end of the payload.
    marker = payload.find(b'extern "C"')
    if marker < 0:
        return None
    for at in range(marker - 8, len(head) - 1, -1):
        (size,) = struct.unpack_from("<Q", payload, at)
        if at + 8 + size == len(payload):
            table = payload[len(head) : at]
            source = payload[at + 8 :].decode()
            code = compile_(source, architecture)
            format_ = b"cubin"
            return (
                struct.pack("<Q", len(format_))
                + format_
                + table
                + struct.pack("<Q", len(code))
                + code
            )
    raise ToolchainError("the kernels' source cannot be found in TVM's module")
