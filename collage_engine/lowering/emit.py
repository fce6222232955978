"""Emitting one partition into a Relax function that is being built: its kernels and its calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from collage_engine.lowering.built import Kernel
from collage_engine.lowering.extract import relax_type
from collage_engine.lowering.shared_weights import SharedWeights
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import KERNEL_NODES, MODULES, Function
from collage_engine.toolchains.capabilities import LowersToTir
from collage_engine.toolchains.registry import get


class LoweredParts:
    """The modules that partitions of one model were lowered to, which later covers take again.

    Covers of one run have most of their partitions in common.

    Args:
        folder: Where large weights are kept, which covers then share; None: modules hold them.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.weights = None if folder is None else SharedWeights(folder)
        self._modules: dict[object, Any] = {}

    def lowered(self, toolchain: LowersToTir, function: Function) -> Any:
        """Return what a toolchain lowers a function to; it is done once.

        Raises:
            ToolchainError: The toolchain cannot take it.
        """
        formats = [tuple(sorted(each.items())) for each in (function.takes, function.gives)]
        key = (function.instance, function.nodes, function.inputs, function.outputs, *formats)
        module = self._modules.get(key)
        if module is None:
            module = toolchain.lower(function)
            if self.weights is not None:
                module = self.weights.marked(module)
            if not function.instance.tuning:  # a tuned kernel may become another one
                self._modules[key] = module
        return module


class CompiledParts:
    """The compiled partitions of a module that is being built."""

    def __init__(self, builder: Any, prefix: str = "", lowered: LoweredParts | None = None) -> None:
        """Begin without a partition.

        Args:
            builder: Relax's block builder of the module.
            prefix: What the names of kernels begin with.
            lowered: What partitions of earlier covers were lowered to; None: there are none.
        """
        self._known = lowered or LoweredParts()
        self.externals: list[Any] = []
        """Runtime modules of external toolchains."""
        self.calls: list[Kernel] = []
        """The kernels that are called, in order."""
        self._builder = builder
        self._prefix = prefix
        self._kernels: dict[Any, Any] = {}
        """The variable of each PrimFunc that was added."""

    def call(self, part: int, function: Function, arguments: list[Any]) -> list[Any]:
        """Compile a partition; emit the bindings of a lowered one, or the call of an external one.

        Args:
            part: The partition's place in execution order.
            function: What it computes.
            arguments: The variables of its inputs.

        Returns:
            The variables of its outputs, in order.

        Raises:
            ToolchainError: The toolchain cannot take it; the sentence names the partition's
                operators.
        """
        toolchain = get(function.instance.toolchain)
        try:
            if isinstance(toolchain, LowersToTir):
                return self._inline(
                    part, self._known.lowered(toolchain, function), function, arguments
                )
            self.externals.append(toolchain.compile(function))
        except ToolchainError as error:
            first = function.members[0]
            raise ToolchainError(f"{function.symbol}, from operator {first} on: {error}") from error
        self.calls.append(Kernel(name=function.symbol, part=part))
        return self._call_external(function, arguments)

    def module(self) -> Any:
        """Return the module that was built, with the runtime modules that it calls."""
        if not self._kernels:
            # Without a PrimFunc TVM would compile an empty C file to stand in for one.
            self._add_placeholder(f"{self._prefix}collage_placeholder")
        module = self._builder.get()
        return module.with_attr(MODULES, self.externals) if self.externals else module

    def _call_external(self, function: Function, arguments: list[Any]) -> list[Any]:
        """Emit the call of an external partition's symbol; return a variable for each output."""
        from tvm import relax
        from tvm.ir import TupleGetItem

        types = [relax_type(function.output_type(index)) for index in function.outputs]
        whole = types[0] if len(types) == 1 else types
        if function.returns:
            whole = whole if len(types) == 1 else relax.TupleType(types)
            call = relax.call_pure_packed(function.symbol, *arguments, ty_args=whole)
        else:
            call = relax.op.call_dps_packed(function.symbol, arguments, whole)
        result = self._builder.emit(call)
        if len(types) == 1:
            return [result]
        return [self._builder.emit(TupleGetItem(result, field)) for field in range(len(types))]

    def _add_kernels(self, lowered: Any, function: Function) -> dict[Any, Any]:
        """Add a lowered partition's PrimFuncs; equal ones share one variable."""
        from tvm import relax
        from tvm.tirx import PrimFunc

        added = {}
        for var, func in lowered.functions.items():
            if isinstance(func, PrimFunc):
                # Most equal kernels are one object (``scheduler.kernel_for``); the builder, which
                # compares others, hashes each whole.
                if func not in self._kernels:
                    # Its symbol would make equal kernels differ; the build attaches a fresh one.
                    has_symbol = "global_symbol" in func.attrs
                    bare = func.without_attr("global_symbol") if has_symbol else func
                    name = self._prefix + var.name_hint
                    self._kernels[func] = self._builder.add_func(bare, name)
                added[var] = self._kernels[func]
            elif not (isinstance(func, relax.Function) and var.name_hint == "main"):
                name = function.instance.toolchain
                raise ToolchainError(f"{function.symbol}: {name} left {var.name_hint} unlowered")
        return added

    def _inline(
        self, part: int, lowered: Any, function: Function, arguments: list[Any]
    ) -> list[Any]:
        """Emit the bindings of a lowered partition's ``main``; return its outputs' variables."""
        from tvm import relax
        from tvm.ir import Call, GlobalVar, Tuple, TupleGetItem

        from collage_engine.kernels.relax_values import with_variables

        main, builder = lowered["main"], self._builder
        said = json.loads(str(dict(lowered.attrs or {}).get(KERNEL_NODES, "[]")))
        values: dict[Any, Any] = self._add_kernels(lowered, function)
        values |= zip(main.params, arguments, strict=True)
        for block in main.body.blocks:
            for binding in block.bindings:
                value = with_variables(binding.value, lambda v: values.get(v, v))
                if not isinstance(value, Call | TupleGetItem):
                    values[binding.var] = value  # a tuple, or another name of the same value
                    continue
                values[binding.var] = builder.emit(value)
                if isinstance(value, Call) and value.args:
                    callee, before = value.args[0], binding.value.args[0]
                    if isinstance(callee, GlobalVar):
                        name, called = str(callee.name_hint), str(before.name_hint)
                    elif isinstance(callee, relax.ExternFunc):
                        name = called = str(callee.global_symbol)
                    else:
                        continue
                    self.calls.append(Kernel(name=name, part=part, operators=_next(said, called)))
        result = with_variables(main.body.body, lambda v: values.get(v, v))
        if isinstance(result, Tuple):
            return list(result.fields)
        if isinstance(result.ty, relax.TupleType):
            return [builder.emit(TupleGetItem(result, i)) for i in range(len(result.ty.fields))]
        return [result]

    def _add_placeholder(self, name: str) -> None:
        """Add a kernel that nobody calls."""
        from tvm import te

        source = te.placeholder((1,), name="source", dtype="float32")
        copy = te.compute((1,), lambda i: source[i], name="copy")
        kernel = te.create_prim_func([source, copy])
        self._builder.add_func(kernel.with_attr("global_symbol", name), name)


def _next(said: list[tuple[str, list[int]]], callee: str) -> tuple[int, ...]:
    """Return the operators of the next call of a kernel or library function, as far as it is said.

    Args:
        said: ``KERNEL_NODES``; what was said before that call is dropped.
        callee: What is called.
    """
    place = next((k for k, (name, _) in enumerate(said) if name == callee), None)
    if place is None:
        return ()
    found = tuple(said[place][1])
    del said[: place + 1]  # what was left out in between was dropped as dead
    return found
