"""Device code for NVIDIA: CUDA source → cubin, put into a module that carries source.

TVM's wheel compiles kernels when a device is there, and leaves their source in the module when
not, to be compiled by Python on the machine that loads it. An artifact has to run without Python
and without a compiler, so whatever is exported is compiled here, by nvrtc.

Compiled code is kept between processes and runs, with the processor's (``executable.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial

from collage_engine.lowering.shared_weights import modules_of, with_length
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.runtime.cuda import by_nvrtc, nvrtc
from collage_engine.toolchains.runtime.kept_files import digest_of, kept_or_made

KIND = b"cuda"
"""Module kind under which TVM serialises device code: format, kernels, code."""
SOURCE = b"cuda"
"""Format of a module that still carries source."""


def compile_cubins(sources: Sequence[str], architecture: str) -> list[bytes]:
    """Return the cubins of CUDA sources, those that are not kept compiled on all processors.

    Args:
        sources: The sources.
        architecture: The device's architecture, such as ``sm_90a``.

    Raises:
        ToolchainError: There is no compiler, or it refuses a source; the sentence has its first
            error.
    """
    compilers = [str(library.stat().st_size) for library in nvrtc()]
    plain = [with_own_integers(source) for source in sources]
    keys = [digest_of("cubin", *compilers, architecture, source) for source in plain]
    makers = {
        key: partial(by_nvrtc, source, architecture)
        for key, source in zip(keys, plain, strict=True)
    }
    codes = kept_or_made(makers)
    return [codes[key] for key in keys]


def compile_cubin(source: str, architecture: str) -> bytes:
    """Return the cubin of one CUDA source; see ``compile_cubins``."""
    return compile_cubins([source], architecture)[0]


INTEGERS = """
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define __asm__ asm
#define __volatile__ volatile
"""
"""What kernels need of that part of TVM's preamble which is for nvrtc."""


def with_own_integers(source: str) -> str:
    """Return source of TVM's whose preamble includes no header of CCCL.

    TVM takes integer types from there. Reading the headers takes 0.45 s of processor time for every
    kernel, nine tenths of what compiling a small one takes.
    """
    before, head, rest = source.partition("#ifdef __CUDACC_RTC__\n  #include <cuda/std/cstdint>")
    _, middle, after = rest.partition("#else\n")
    _, end, after = after.partition("#endif\n")
    return before + INTEGERS + after if head and middle and end else source


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


def with_cubins(blob: bytes, architecture: str) -> bytes:
    """Return a packed blob of imported modules in which CUDA source is replaced by compiled code.

    The blob (``runtime.ModulePackImportsToTensor``) is a length and then, for each module, its kind
    and its bytes, each behind a length. A CUDA module's bytes are the format, the table of kernels
    and the code. Other modules, and CUDA modules that are compiled, stay as they are.

    Args:
        blob: The bytes of the blob.
        architecture: The device's architecture, such as ``sm_90a``.

    Raises:
        ToolchainError: A source does not compile, or cannot be found in the blob.
    """
    _, modules = modules_of(blob)
    carrying = [
        (begin, end, *_table_and_source(blob[begin:end]))
        for kind, begin, end in modules
        if kind == KIND and blob.startswith(with_length(SOURCE), begin)
    ]
    codes = compile_cubins([source for *_, source in carrying], architecture)
    pieces, at = [], 8
    for (begin, end, table, _), code in zip(carrying, codes, strict=True):
        content = with_length(b"cubin") + table + with_length(code)
        pieces += [blob[at : begin - 8], with_length(content)]
        at = end
    return with_length(b"".join([*pieces, blob[at:]]))


def _table_and_source(payload: bytes) -> tuple[bytes, str]:
    """Return the table of kernels and the source of a CUDA module's bytes."""
    # The code is the last field: its length leads to the very end of the payload.
    for at in range(payload.find(b'extern "C"') - 8, 7 + len(SOURCE), -1):
        (size,) = struct.unpack_from("<Q", payload, at)
        if at + 8 + size == len(payload):
            return payload[8 + len(SOURCE) : at], payload[at + 8 :].decode()
    raise ToolchainError("the kernels' source cannot be found in TVM's module")
