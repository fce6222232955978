"""Describes the tensor cores' instructions as pairs of PrimFuncs: a description, and TVM's form."""

from __future__ import annotations

from typing import Any

from collage_engine.kernels.cuda.product.plan import BF16, F16, PLAIN, S8, TF32

SHARED = {PLAIN: "shared.dyn", TF32: "shared.dyn", F16: "shared", BF16: "shared", S8: "shared"}
"""Memory scope of the slices of A and B, by arithmetic."""
RESULT = "shared.dyn"
"""Memory scope of the tile of C. Where slices lie in it too they make room for it, but all that
is in one scope must be of one type."""
ELEMENTS = {F16: "float16", BF16: "bfloat16", TF32: "float32", S8: "int8"}
"""Element type of a fragment of A or B."""
SUMS = {S8: "int32"}
"""Element type of a fragment of C; float32 for arithmetic that is not here."""
STAND_IN = {F16: "float16", BF16: "uint8", TF32: "float16", S8: "int8"}
"""Element type that TVM is told for a fragment of A or B, since it accepts no others. Nothing
else makes fragments of ``half`` that are 8 deep, or of unsigned bytes."""


def _place(buffer: Any, step: Any, rows: int, columns: int) -> Any:
    """Returns the number of a fragment in its buffer, whose rows are ``step`` elements apart."""
    across = step // columns
    return buffer.elem_offset // step // rows * across + buffer.elem_offset % step // columns


def fill(math: str, depth: int) -> tuple[Any, Any]:
    """Returns the description and the implementation of filling a fragment of C with zeros."""
    from tvm import tirx
    from tvm.script import tirx as T

    sums = SUMS.get(math, "float32")
    zero = tirx.const(0, sums)

    @T.prim_func(s_tir=True)
    def description(c: T.handle) -> None:
        C = T.match_buffer(c, (16, 16), sums, align=64, offset_factor=16, scope="wmma.accumulator")
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
        C = T.match_buffer(
            c,
            (16, 16),
            sums,
            align=64,
            offset_factor=16,
            scope="wmma.accumulator",
            strides=[d1, d0],
        )
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:16, 0:16])
            T.evaluate(
                T.tvm_fill_fragment(
                    C.data, 16, 16, depth, _place(C, d1, 16, 16), zero, dtype="void"
                )
            )

    return description, implementation


def load(math: str, shape: tuple[int, int], is_b: bool) -> tuple[Any, Any]:
    """Returns the description and the implementation of loading a fragment from shared memory.

    The fragment's type is the stand-in, so the description converts.
    """
    from tvm.script import tirx as T

    element, stand_in, shared = ELEMENTS[math], STAND_IN[math], SHARED[math]
    rows, columns = shape
    depth = rows if is_b else columns
    scope = f"wmma.matrix_{'b' if is_b else 'a'}"

    def converted(value: Any) -> Any:
        return value if element == stand_in else T.Cast(stand_in, value)

    @T.prim_func(s_tir=True)
    def description(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(
            a, (rows, columns), element, align=64, offset_factor=columns, scope=shared
        )
        C = T.match_buffer(
            c, (rows, columns), stand_in, align=64, offset_factor=columns, scope=scope
        )
        with T.sblock("root"):
            T.reads(A[0:rows, 0:columns])
            T.writes(C[0:rows, 0:columns])
            for i, j in T.grid(rows, columns):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = converted(A[vi, vj])

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, c: T.handle) -> None:
        s1 = T.int32()
        s0 = T.int32()
        d1 = T.int32()
        d0 = T.int32()
        A = T.match_buffer(
            a,
            (rows, columns),
            element,
            align=64,
            offset_factor=columns,
            scope=shared,
            strides=[s1, s0],
        )
        C = T.match_buffer(
            c,
            (rows, columns),
            stand_in,
            align=64,
            offset_factor=columns,
            scope=scope,
            strides=[d1, d0],
        )
        with T.sblock("root"):
            T.reads(A[0:rows, 0:columns])
            T.writes(C[0:rows, 0:columns])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    C.data,
                    16,
                    16,
                    depth,
                    _place(C, d1, rows, columns),
                    A.access_ptr("r", ptr_type=element),
                    s1,
                    "row_major",
                    dtype="void",
                )
            )

    return description, implementation


def multiply(math: str, depth: int) -> tuple[Any, Any]:
    """Returns the description and the implementation of multiplying two fragments.

    The description converts to the stand-in's type and back.
    """
    from tvm.script import tirx as T

    element, stand_in, sums = ELEMENTS[math], STAND_IN[math], SUMS.get(math, "float32")

    def widened(value: Any) -> Any:
        if element not in (sums, stand_in):
            value = T.Cast(element, value)
        return T.Cast(sums, value)

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(
            a, (16, depth), stand_in, align=64, offset_factor=depth, scope="wmma.matrix_a"
        )
        B = T.match_buffer(
            b, (depth, 16), stand_in, align=64, offset_factor=16, scope="wmma.matrix_b"
        )
        C = T.match_buffer(c, (16, 16), sums, align=64, offset_factor=16, scope="wmma.accumulator")
        with T.sblock("root"):
            T.reads(C[0:16, 0:16], A[0:16, 0:depth], B[0:depth, 0:16])
            T.writes(C[0:16, 0:16])
            for i, j, k in T.grid(16, 16, depth):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + widened(A[vi, vk]) * widened(B[vk, vj])

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        a1 = T.int32()
        a0 = T.int32()
        b1 = T.int32()
        b0 = T.int32()
        c1 = T.int32()
        c0 = T.int32()
        A = T.match_buffer(
            a,
            (16, depth),
            stand_in,
            align=64,
            offset_factor=depth,
            scope="wmma.matrix_a",
            strides=[a1, a0],
        )
        B = T.match_buffer(
            b,
            (depth, 16),
            stand_in,
            align=64,
            offset_factor=16,
            scope="wmma.matrix_b",
            strides=[b1, b0],
        )
        C = T.match_buffer(
            c,
            (16, 16),
            sums,
            align=64,
            offset_factor=16,
            scope="wmma.accumulator",
            strides=[c1, c0],
        )
        with T.sblock("root"):
            T.reads(C[0:16, 0:16], A[0:16, 0:depth], B[0:depth, 0:16])
            T.writes(C[0:16, 0:16])
            T.evaluate(
                T.tvm_mma_sync(
                    C.data,
                    _place(C, c1, 16, 16),
                    A.data,
                    _place(A, a1, 16, depth),
                    B.data,
                    _place(B, b1, depth, 16),
                    C.data,
                    _place(C, c1, 16, 16),
                    dtype="void",
                )
            )

    return description, implementation


def store(math: str, depth: int) -> tuple[Any, Any]:
    """Returns the description and the implementation of storing a fragment of C."""
    from tvm.script import tirx as T

    shared, sums = RESULT, SUMS.get(math, "float32")

    @T.prim_func(s_tir=True)
    def description(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (16, 16), sums, align=64, offset_factor=16, scope="wmma.accumulator")
        C = T.match_buffer(c, (16, 16), sums, align=64, offset_factor=16, scope=shared)
        with T.sblock("root"):
            T.reads(A[0:16, 0:16])
            T.writes(C[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = A[vi, vj]

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, c: T.handle) -> None:
        s1 = T.int32()
        s0 = T.int32()
        d1 = T.int32()
        d0 = T.int32()
        A = T.match_buffer(
            a,
            (16, 16),
            sums,
            align=64,
            offset_factor=16,
            scope="wmma.accumulator",
            strides=[d1, d0],
        )
        C = T.match_buffer(
            c, (16, 16), sums, align=64, offset_factor=16, scope=shared, strides=[s1, s0]
        )
        with T.sblock("root"):
            T.reads(A[0:16, 0:16])
            T.writes(C[0:16, 0:16])
            T.evaluate(
                T.tvm_store_matrix_sync(
                    A.data,
                    16,
                    16,
                    depth,
                    _place(A, d1, 16, 16),
                    C.access_ptr("w", ptr_type=sums),
                    s1,
                    "row_major",
                    dtype="void",
                )
            )

    return description, implementation
