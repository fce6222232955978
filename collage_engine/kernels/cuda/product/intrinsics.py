"""Registers tensor-core intrinsics (WMMA fragments) for f16, bf16, tf32 and int8 with TVM.

TVM describes and writes fragments of float16 and integers only. Those of bfloat16 and tf32 go
through it under another type's name (the schedule sets it), and :func:`finished_source` puts the
true one into the CUDA source. (TVM's own list of intrinsics is not imported: that takes it a
minute of parsing.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from collage_engine.kernels.cuda.product import fragments
from collage_engine.kernels.cuda.product.plan import FRAGMENT, TF32

ROUND_TF32 = "nvcuda::wmma::__float_to_tf32"
"""Rounds a float to nearest; without it the tensor cores cut the lower bits off."""

_FRAGMENT = r"(nvcuda::wmma::fragment<nvcuda::wmma::matrix_[ab], 16, 16, "
_AS_THEY_ARE = (
    (re.compile(_FRAGMENT + r"8, )half\b"), r"\1nvcuda::wmma::precision::tf32"),
    (re.compile(_FRAGMENT + r"16, )(?:uchar|unsigned char|uint8_t)\b"), r"\1__nv_bfloat16"),
)


@dataclass(frozen=True)
class Intrinsics:
    """The names under which TVM knows the tensor-core intrinsics of one arithmetic."""

    fill: str
    load_a: str
    load_b: str
    multiply: str
    store: str


@cache
def intrinsics(math: str) -> Intrinsics:
    """Returns the names of an arithmetic's tensor-core intrinsics, registered by the first call."""
    from tvm.s_tir import TensorIntrin

    depth = 8 if math == TF32 else 16
    found = {
        "fill": fragments.fill(math, depth),
        "load_a": fragments.load(math, (FRAGMENT, depth), False),
        "load_b": fragments.load(math, (depth, FRAGMENT), True),
        "multiply": fragments.multiply(math, depth),
        "store": fragments.store(math, depth),
    }
    names = {}
    for part, (description, implementation) in found.items():
        names[part] = f"collage_wmma_{math}_{part}"
        TensorIntrin.register(names[part], description, implementation, override=True)
    return Intrinsics(**names)


def finished_source(source: str) -> str:
    """Returns CUDA source as TVM writes it, with the fragments' true element types put in."""
    for pattern, replacement in _AS_THEY_ARE:
        source = pattern.sub(replacement, source)
    return source


@cache
def finish_sources() -> None:
    """Have TVM pass every CUDA source through :func:`finished_source`, in this process."""
    import tvm_ffi

    previous = tvm_ffi.get_global_func("tvm_callback_cuda_postproc", allow_missing=True)

    def finish(code: str, target: object) -> str:
        return finished_source(code if previous is None else previous(code, target))

    tvm_ffi.register_global_func("tvm_callback_cuda_postproc", finish, override=True)
