"""A function's operators as a Relax module of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.ir import Call, GlobalVar, Tuple, TupleGetItem

from collage_engine.records.errors import ToolchainError
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.precision import BFLOAT16, PRODUCTS
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.tvm.bfloat16 import ROUNDED
from collage_engine.toolchains.tvm.channels_last import marked
from collage_engine.toolchains.tvm.quantized import Integers

if TYPE_CHECKING:
    from collage_engine.toolchains.tvm.library import LibraryCalls


def relax_module(function: Function, calls: LibraryCalls | None = None) -> tvm.IRModule:
    """``main(inputs) → outputs`` with the model's own operators, constants in place.

    Quantised composites are integer computations from here on, a library's are packed calls.
    Types are logical ones; values of the border in another format are marked.
    """
    model, graph = function.model, function.graph
    builder = relax.BlockBuilder()
    callees = {
        variable: builder.add_func(callee, variable.name_hint)
        for variable, callee in model.module.functions.items()
        if isinstance(callee, tvm.tirx.PrimFunc)
    }
    known: dict[Any, Any] = {}
    unturned: dict[Any, NodeIndex] = {}
    """Variables whose known value is channels last, with their nodes."""
    parameters = []
    for index in function.inputs:
        kind = graph.nodes[index].type
        parameter = relax.Var(f"v{index}", relax.TensorType(kind.shape, kind.dtype))
        known[model.var(index)] = parameter
        parameters.append(parameter)

    def moved(e: Any) -> Any:
        if isinstance(e, relax.Var):
            if e in unturned:
                known[e] = integers.turned(builder, unturned.pop(e))
            return known.get(e, e)
        if isinstance(e, GlobalVar):
            return callees.get(e, e)
        if isinstance(e, Call):
            return Call(e.op, [moved(a) for a in e.args], e.attrs, e.ty_args)
        if isinstance(e, Tuple):
            return Tuple([moved(f) for f in e.fields])
        if isinstance(e, TupleGetItem):
            return TupleGetItem(moved(e.tuple_value), e.index)
        return e

    def value_of(index: int) -> Any:
        if graph.nodes[index].form == "constant":
            return model.expr(index)
        return moved(model.var(index))

    narrow = function.instance.precision == BFLOAT16
    full = function.left_full
    products: list[int] = []
    integers = Integers(function)
    with builder.function("main", parameters):
        with builder.dataflow():
            for index in function.members:
                if graph.nodes[index].form not in ("call", "projection") or integers.skips(index):
                    continue
                if calls is not None and calls.skips(index):
                    continue
                whole = calls.emit(builder, index, value_of) if calls is not None else None
                if whole is None:
                    whole = integers.emit(builder, index, value_of)
                if whole is not None:
                    known[model.var(index)] = whole
                    if index in integers.unturned:
                        unturned[model.var(index)] = index
                    continue
                for each in integers.opened(index):
                    if graph.nodes[each].op in PRODUCTS:
                        products.append(each)
                    known[model.var(each)] = builder.emit(moved(model.expr(each)))
            results = [known.get(model.var(index)) for index in function.outputs]
            if any(r is None for r in results):
                raise ToolchainError(f"{function.symbol} gives a value it does not compute")
            result = builder.emit_output(results[0] if len(results) == 1 else Tuple(results))
        builder.emit_func_output(result)
    takes = [k for k, index in enumerate(function.inputs) if index in function.takes]
    gives = [k for k, index in enumerate(function.outputs) if index in function.gives]
    module = marked(builder.get(), takes, gives)
    if narrow:
        kept = [k for k, index in enumerate(products) if index in full]
        main = module["main"].with_attr(ROUNDED, kept)
        module.update_func(module.get_global_var("main"), main)
    return module
