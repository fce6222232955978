"""Pack a module's imports (weights, plans) into a file that the linker takes as it is.

TVM's own way makes LLVM write the bytes out as a constant array: 1.3 s per 100 MB. Here the linker
includes the file, which costs a copy.
"""

from __future__ import annotations

import os
from typing import Any

from collage_engine.build.link import BYTES


def pack_imports(
    module: Any, is_system_lib: bool, prefix: str, workspace: str, architecture: str = ""
) -> str:
    """Write the blob which TVM looks for when it loads a module, for ``link.link_shared``.

    It has the signature of TVM's ``fpack_imports``, but for the last argument.

    Args:
        module: The module whose imports are packed.
        is_system_lib: Is ignored; TVM gives it.
        prefix: Is ignored; TVM gives it.
        workspace: The folder for the files.
        architecture: The CUDA architecture (sm_90a) for which kernels that are still CUDA source
            are compiled; empty: none are.

    Returns:
        The path of the file, which is called as the blob's symbol.
    """
    import numpy as np
    import tvm_ffi

    packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module)
    blob = np.from_dlpack(packed)  # without a copy
    symbol = str(tvm_ffi.get_global_func("runtime.ModuleImportsBlobName")())
    if architecture:
        from collage_engine.lowering.cubin import with_cubins

        blob = np.frombuffer(with_cubins(blob.tobytes(), architecture), dtype=np.uint8)
    path = os.path.join(workspace, symbol + BYTES)
    blob.tofile(path)
    return path
