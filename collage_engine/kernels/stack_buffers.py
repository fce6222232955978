"""A pipeline of TVM's passes for kernels that keeps small buffers on the stack, so in registers.

TVM places a buffer of scope ``local`` in its workspace: every piece of a loop that threads share
then allocates and frees each of its buffers, which takes longer than a small piece itself, and
stores all sums there. ``LowerTVMBuiltin`` leaves alone what carries an annotation; TVM's passes
before it drop that, so it is set here, right before.

Where the registers do not suffice LLVM spills vectors to the stack, and places them as the stack
lies, at a multiple of 16 bytes: in three of four processes, by chance, each vector of 64 bytes then
lies in two cache lines, and a convolution takes up to 1.7 times as long. LLVM aligns the stack of a
function that holds a buffer of its own with a larger alignment, so each gets one.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from collage_engine.kernels.tir_builder import local, prefetch, seq

PIPELINE = "collage"
"""The name of the pipeline, as TVM's builders take it."""
_KEPT = {"disable_lower_builtin": tirx.IntImm("bool", 1)}


LINE_BYTES = 64
"""Bytes of a vector register of AVX-512 and of a cache line; narrower vectors lie well then too."""


def _kept(statement: Any) -> Any:
    """Return a statement with all its buffers of scope ``local`` annotated, its stack aligned."""
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([_kept(part) for part in statement.seq])
    if isinstance(statement, tirx.For):
        s = statement
        body = _kept(s.body)
        if s.kind == tirx.ForKind.PARALLEL:  # a function of its own, which threads call
            body = _aligned(body)
        kept = body, s.thread_binding, s.annotations, s.step
        return tirx.For(s.loop_var, s.min, s.extent, s.kind, *kept)
    if isinstance(statement, tirx.IfThenElse):
        otherwise = statement.else_case
        if otherwise is not None:
            otherwise = _kept(otherwise)
        return tirx.IfThenElse(statement.condition, _kept(statement.then_case), otherwise)
    if isinstance(statement, tirx.AttrStmt):
        s = statement
        body = _kept(s.body)
        if s.attr_key == "compute_scope":  # the kernel without the checks of its arguments
            body = _aligned(body)
        return tirx.AttrStmt(s.node, s.attr_key, s.value, body)
    if isinstance(statement, tirx.AllocBuffer) and statement.buffer.scope() == "local":
        return tirx.AllocBuffer(statement.buffer, _KEPT)
    return statement


def _aligned(body: Any) -> Any:
    """Return the body of a function behind a buffer of a cache line on its stack.

    It is prefetched, which costs an instruction, so that LLVM does not drop it.
    """
    line = local([1], f"int8x{LINE_BYTES}", "line")  # TVM aligns arrays of scalars to 16 bytes only
    return seq(tirx.AllocBuffer(line, _KEPT), prefetch(line, 0), body)


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator,unused-ignore]
def _keep_on_stack(function: tirx.PrimFunc, *_: Any) -> tirx.PrimFunc:
    return function.with_body(_kept(function.body))


def _pipeline() -> tuple[Any, Any, Any]:
    """Return TVM's passes for all functions, for those of the host, and for those of devices."""
    passes, finish_host, finish_device = default_s_tir_pipeline()
    return (
        passes,
        lambda: tvm.ir.transform.Sequential([_keep_on_stack, finish_host()]),
        finish_device,
    )


register_tir_pipeline(PIPELINE, _pipeline)
