"""Registers tensor-core intrinsics (WMMA fragments) for f16 and int8 with TVM.

Each is a pair of PrimFuncs: a description, and TVM's form. (TVM's own list of them is not imported:
that takes it a minute of parsing.)
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from collage_engine.kernels.cuda.product.plan import F16, FRAGMENT, PLAIN, S8

SHARED = {PLAIN: "shared.dyn", F16: "shared", S8: "shared"}
"""Memory scope of the slices of A and B, by arithmetic."""
RESULT = "shared.dyn"
"""Memory scope of the tile of C: all that is in one scope must be of one type."""
ELEMENTS = {F16: "float16", S8: "int8"}
"""Element type of a fragment of A or B."""
SUMS = {S8: "int32"}
"""Element type of a fragment of C; float32 for arithmetic that is not here."""
SUMS_SCOPE = "wmma.accumulator"
"""Memory scope of a fragment of C."""


@cache
def intrinsics(math: str) -> dict[str, str]:
    """Return the names of an arithmetic's tensor-core intrinsics, registered by the first call.

    They are those of filling, loading A and B, multiplying and storing, by these words.
    """
    from tvm.s_tir import TensorIntrin

    element, sums = ELEMENTS[math], SUMS.get(math, "float32")
    parts = {
        "fill": fill(sums),
        "load_a": copy(element, SHARED[math], "wmma.matrix_a"),
        "load_b": copy(element, SHARED[math], "wmma.matrix_b"),
        "multiply": multiply(element, sums),
        "store": copy(sums, SUMS_SCOPE, RESULT),
    }
    names = {}
    for part, (description, implementation) in parts.items():
        names[part] = f"collage_wmma_{math}_{part}"
        TensorIntrin.register(names[part], description, implementation, override=True)
    return names


def _place(buffer: Any, step: Any) -> Any:
    """Return the number of a fragment in its buffer, whose rows are ``step`` elements apart."""
    across = step // FRAGMENT
    offset = buffer.elem_offset
    return offset // step // FRAGMENT * across + offset % step // FRAGMENT


def _square() -> Any:
    """Return the function that states a fragment, or a square of shared memory, in a script."""
    from tvm.script import tirx as T

    return partial(T.match_buffer, shape=(16, 16), align=64, offset_factor=16)


def fill(sums: str) -> tuple[Any, Any]:
    """Return the description and the implementation of filling a fragment of C with zeros."""
    from tvm import tirx
    from tvm.script import tirx as T

    square, zero = _square(), tirx.const(0, sums)

    @T.prim_func(s_tir=True)
    def description(c: T.handle) -> None:
        C = square(c, dtype=sums, scope=SUMS_SCOPE)
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("init"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = zero

    @T.prim_func(s_tir=True)
    def implementation(c: T.handle) -> None:
        d1 = T.int32()
        d0 = T.int32()
        C = square(c, dtype=sums, scope=SUMS_SCOPE, strides=[d1, d0])
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:16, 0:16])
            T.evaluate(T.tvm_fill_fragment(C.data, 16, 16, 16, _place(C, d1), zero, dtype="void"))

    return description, implementation


def copy(element: str, source: str, target: str) -> tuple[Any, Any]:
    """Return the description and the implementation of copying a fragment.

    One of the two memory scopes is that of fragments, the other one is shared memory.

    Args:
        element: The type of an element.
        source: The memory scope of what is read.
        target: The memory scope of what is written.
    """
    from tvm.script import tirx as T

    square, loads = _square(), target.startswith("wmma")

    def moved(a: Any, a1: Any, c: Any, c1: Any) -> Any:
        fragment, step, memory, row = (c, c1, a, a1) if loads else (a, a1, c, c1)
        move = T.tvm_load_matrix_sync if loads else T.tvm_store_matrix_sync
        pointer = memory.access_ptr("r" if loads else "w", ptr_type=element)
        number = _place(fragment, step)
        return move(fragment.data, 16, 16, 16, number, pointer, row, "row_major", dtype="void")

    @T.prim_func(s_tir=True)
    def description(a: T.handle, c: T.handle) -> None:
        A = square(a, dtype=element, scope=source)
        C = square(c, dtype=element, scope=target)
        with T.sblock("root"):
            T.reads(A[0:16, 0:16])
            T.writes(C[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("copy"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = A[vi, vj]

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, c: T.handle) -> None:
        a1 = T.int32()
        a0 = T.int32()
        c1 = T.int32()
        c0 = T.int32()
        A = square(a, dtype=element, scope=source, strides=[a1, a0])
        C = square(c, dtype=element, scope=target, strides=[c1, c0])
        with T.sblock("root"):
            T.reads(A[0:16, 0:16])
            T.writes(C[0:16, 0:16])
            T.evaluate(moved(A, a1, C, c1))

    return description, implementation


def multiply(element: str, sums: str) -> tuple[Any, Any]:
    """Return the description and the implementation of multiplying two fragments."""
    from tvm.script import tirx as T

    square = _square()

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = square(a, dtype=element, scope="wmma.matrix_a")
        B = square(b, dtype=element, scope="wmma.matrix_b")
        C = square(c, dtype=sums, scope=SUMS_SCOPE)
        with T.sblock("root"):
            T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])
            T.writes(C[0:16, 0:16])
            for i, j, k in T.grid(16, 16, 16):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + T.Cast(sums, A[vi, vk]) * T.Cast(sums, B[vk, vj])

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        a1 = T.int32()
        a0 = T.int32()
        b1 = T.int32()
        b0 = T.int32()
        c1 = T.int32()
        c0 = T.int32()
        A = square(a, dtype=element, scope="wmma.matrix_a", strides=[a1, a0])
        B = square(b, dtype=element, scope="wmma.matrix_b", strides=[b1, b0])
        C = square(c, dtype=sums, scope=SUMS_SCOPE, strides=[c1, c0])
        with T.sblock("root"):
            T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])
            T.writes(C[0:16, 0:16])
            T.evaluate(
                T.tvm_mma_sync(
                    C.data,
                    _place(C, c1),
                    A.data,
                    _place(A, a1),
                    B.data,
                    _place(B, b1),
                    C.data,
                    _place(C, c1),
                    dtype="void",
                )
            )

    return description, implementation
