"""Finds op pattern kinds that the table lacks, by what TVM reads off a call's lowered form."""

from __future__ import annotations

import logging
from typing import Any

import tvm
from tvm import relax

from collage_engine.records.graph import OpKind
from collage_engine.records.reasons import short_reason

_LOG = logging.getLogger(__name__)

_CODES: dict[int, OpKind] = {
    0: "elementwise",
    1: "broadcast",
    2: "injective",
    3: "reduction",
    4: "anchor",
    7: "tuple",
    8: "opaque",
}


def probe_kind(call: Any, functions: dict[str, Any]) -> OpKind:
    """Lower one call alone and return the kind that TVM reads off it.

    Args:
        call: The Relax call.
        functions: The PrimFuncs that a ``call_tir`` of the model may name, by name.

    Returns:
        The kind; opaque where the call lowers to no single PrimFunc, or cannot be lowered.
    """
    if str(call.op.name).startswith("relax.call_tir"):
        lowered = tvm.IRModule({"f": functions[call.args[0].name_hint]})
    else:
        lowered = _legalized(call)
        if lowered is None:
            return "opaque"
    annotated = relax.transform.AnnotateTIROpPattern()(lowered)
    codes = [
        int(f.attrs["op_pattern"])
        for _, f in annotated.functions_items()
        if isinstance(f, tvm.tirx.PrimFunc) and f.attrs and "op_pattern" in f.attrs
    ]
    if len(codes) != 1:
        return "opaque"
    return _CODES.get(codes[0], "opaque")


def _legalized(call: Any) -> tvm.IRModule | None:
    """Return a module that holds nothing but the lowered call; None where TVM cannot lower it."""
    parameters: dict[Any, Any] = {}

    def replaced(argument: Any) -> Any:
        if isinstance(argument, relax.Var):
            if argument not in parameters:
                parameters[argument] = relax.Var(f"p{len(parameters)}", argument.ty)
            return parameters[argument]
        if isinstance(argument, relax.Tuple):
            return relax.Tuple([replaced(f) for f in argument.fields])
        return argument

    alone = tvm.ir.Call(call.op, [replaced(a) for a in call.args], call.attrs, call.ty_args)
    builder = relax.BlockBuilder()
    with builder.function("main", list(parameters.values())):
        with builder.dataflow():
            out = builder.emit_output(alone)
        builder.emit_func_output(out)
    try:
        return relax.transform.LegalizeOps()(builder.get())
    except (
        tvm.error.TVMError,
        ValueError,
        TypeError,
        NotImplementedError,
        AssertionError,
    ) as error:
        # Its kind decides about fusion only; what cannot run it says so with the reason.
        _LOG.debug("TVM cannot lower %s, so it is opaque: %s", call.op, short_reason(error))
        return None
