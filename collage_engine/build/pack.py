"""Pack a module's imports (weights, plans) into an object the linker takes as it is.

TVM's own way makes LLVM write the bytes out as a constant array: 1.3 s per 100 MB. Here the
assembler includes the file, which costs a copy.
"""

from __future__ import annotations

import os
from typing import Any


def pack_imports(
    module: Any, is_system_lib: bool, prefix: str, workspace: str, architecture: str = ""
) -> str:
    """Write an assembler file that defines the blob which TVM looks for when it loads a module.

    It has the signature of TVM's ``fpack_imports``, but for the last argument.

    Args:
        module: The module whose imports are packed.
        is_system_lib: Is ignored; TVM gives it.
        prefix: Is ignored; TVM gives it.
        workspace: The folder for the files.
        architecture: The CUDA architecture (sm_90a) for which kernels that are still CUDA source
            are compiled; empty: none are.

    Returns:
        The path of the assembler file.
    """
    import numpy as np
    import tvm_ffi

    blob = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module).numpy()
    symbol = str(tvm_ffi.get_global_func("runtime.ModuleImportsBlobName")())
    if architecture:
        from collage_engine.lowering.cubin import with_cubins

        blob = np.frombuffer(with_cubins(blob.tobytes(), architecture), dtype=np.uint8)
    content = os.path.join(workspace, "imports.bin")
    blob.tofile(content)
    path = os.path.join(workspace, "imports.S")
    quoted = content.replace("\\", "\\\\").replace('"', '\\"')
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            f'    .section .rodata, "a", @progbits\n'
            f"    .globl {symbol}\n    .type {symbol}, @object\n    .balign 64\n"
            f'{symbol}:\n    .incbin "{quoted}"\n    .size {symbol}, {blob.size}\n'
            f'    .section .note.GNU-stack, "", @progbits\n'
        )
    return path
