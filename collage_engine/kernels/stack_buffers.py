"""A pipeline of TVM's passes for kernels that keeps small buffers on the stack, so in registers.

TVM places a buffer of scope ``local`` in its workspace: every piece of a loop that threads share
then allocates and frees each of its buffers, which takes longer than a small piece itself, and
stores all sums there. ``LowerTVMBuiltin`` leaves alone what carries an annotation; TVM's passes
before it drop that, so it is set here, right before.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

PIPELINE = "collage"
"""The name of the pipeline, as TVM's builders take it."""
_KEPT = {"disable_lower_builtin": tirx.IntImm("bool", 1)}


def _kept(statement: Any) -> Any:
    """Returns a statement with all its buffers of scope ``local`` annotated."""
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([_kept(each) for each in statement.seq])
    if isinstance(statement, tirx.For):
        s = statement
        kept = _kept(s.body), s.thread_binding, s.annotations, s.step
        return tirx.For(s.loop_var, s.min, s.extent, s.kind, *kept)
    if isinstance(statement, tirx.IfThenElse):
        otherwise = statement.else_case
        if otherwise is not None:
            otherwise = _kept(otherwise)
        return tirx.IfThenElse(statement.condition, _kept(statement.then_case), otherwise)
    if isinstance(statement, tirx.AttrStmt):
        s = statement
        return tirx.AttrStmt(s.node, s.attr_key, s.value, _kept(s.body))
    if isinstance(statement, tirx.AllocBuffer) and statement.buffer.scope() == "local":
        return tirx.AllocBuffer(statement.buffer, _KEPT)
    return statement


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator,unused-ignore]
def _keep_on_stack(function: tirx.PrimFunc, *_: Any) -> tirx.PrimFunc:
    return function.with_body(_kept(function.body))


def _pipeline() -> tuple[Any, Any, Any]:
    """Returns TVM's passes for all functions, for those of the host, and for those of devices."""
    passes, finish_host, finish_device = default_s_tir_pipeline()
    return (
        passes,
        lambda: tvm.ir.transform.Sequential([_keep_on_stack, finish_host()]),
        finish_device,
    )


register_tir_pipeline(PIPELINE, _pipeline)
