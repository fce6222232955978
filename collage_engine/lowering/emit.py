"""Emitting one partition into a Relax function that is being built: its kernels and its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collage_engine.lowering.extract import relax_type, substitute
from collage_engine.records.errors import ToolchainError
from collage_engine.toolchains.base import Function


@dataclass(frozen=True)
class KernelCall:
    """A call that ``main`` makes, in order; ``partition`` counts the given functions from 0."""

    kernel: str
    partition: int


def call_external(builder: Any, function: Function, arguments: list[Any]) -> list[Any]:
    """Emit the call of an external partition's symbol, and return one variable for each output."""
    from tvm import relax
    from tvm.ir import TupleGetItem

    types = [relax_type(function.output_type(index)) for index in function.outputs]
    if function.returns:
        whole = types[0] if len(types) == 1 else relax.TupleType(types)
        call = builder.emit(relax.call_pure_packed(function.symbol, *arguments, ty_args=whole))
    else:
        call = builder.emit(
            relax.op.call_dps_packed(
                function.symbol, arguments, types[0] if len(types) == 1 else types
            )
        )
    if len(types) == 1:
        return [call]
    return [builder.emit(TupleGetItem(call, field)) for field in range(len(types))]


def add_kernels(builder: Any, lowered: Any, function: Function, prefix: str = "") -> dict[Any, Any]:
    """Add the PrimFuncs of a lowered partition to the module that is being built.

    Args:
        builder: Relax's block builder of that module.
        lowered: The module of the partition.
        function: What it computes.
        prefix: What the names of the added functions begin with.

    Returns:
        The new global variable of each old one; equal functions share one.

    Raises:
        ToolchainError: The toolchain left something in the module that is not lowered.
    """
    from tvm import relax
    from tvm.tirx import PrimFunc

    added = {}
    for var, func in lowered.functions.items():
        if isinstance(func, PrimFunc):
            # Its symbol would make equal kernels differ; the build attaches a fresh one.
            bare = func.without_attr("global_symbol") if "global_symbol" in func.attrs else func
            added[var] = builder.add_func(bare, prefix + var.name_hint)
        elif not (isinstance(func, relax.Function) and var.name_hint == "main"):
            raise ToolchainError(
                f"{function.symbol}: {function.instance.toolchain} left {var.name_hint} unlowered"
            )
    return added


def inline(
    builder: Any,
    lowered: Any,
    arguments: list[Any],
    callees: dict[Any, Any],
    position: int,
    calls: list[KernelCall],
) -> list[Any]:
    """Emit the bindings of a lowered partition's ``main`` into the function that is being built.

    Args:
        builder: Relax's block builder.
        lowered: The module of the partition.
        arguments: The variables that its parameters stand for.
        callees: The global variables of its kernels in the module that is being built.
        position: The partition's position among the given functions.
        calls: Takes the calls of kernels, in order.

    Returns:
        The variables of the partition's outputs, in order.
    """
    from tvm import relax
    from tvm.ir import Call, GlobalVar, Tuple, TupleGetItem

    main = lowered["main"]
    known: dict[Any, Any] = dict(zip(main.params, arguments, strict=True))
    for block in main.body.blocks:
        for binding in block.bindings:
            value = substitute(binding.value, known, callees)
            if isinstance(value, Tuple):
                known[binding.var] = value
                continue
            if isinstance(value, TupleGetItem) and isinstance(value.tuple_value, Tuple):
                known[binding.var] = value.tuple_value.fields[value.index]
                continue
            if not isinstance(value, Call | TupleGetItem):
                known[binding.var] = value  # another name of the same value
                continue
            known[binding.var] = builder.emit(value)
            if isinstance(value, Call) and value.args:
                callee = value.args[0]
                if isinstance(callee, GlobalVar):
                    calls.append(KernelCall(str(callee.name_hint), position))
                elif isinstance(callee, relax.ExternFunc):
                    calls.append(KernelCall(str(callee.global_symbol), position))
    result = substitute(main.body.body, known, callees)
    if isinstance(result, Tuple):
        return list(result.fields)
    if isinstance(result.ty, relax.TupleType):
        return [builder.emit(TupleGetItem(result, i)) for i in range(len(result.ty.fields))]
    return [result]


def add_placeholder(builder: Any, name: str = "collage_placeholder") -> None:
    """Add a kernel that nobody calls to the module that is being built."""
    from tvm import te

    source = te.placeholder((1,), name="source", dtype="float32")
    copy = te.compute((1,), lambda i: source[i], name="copy")
    kernel = te.create_prim_func([source, copy])
    builder.add_func(kernel.with_attr("global_symbol", name), name)
