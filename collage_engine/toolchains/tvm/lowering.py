"""Lowers a function to kernels: it is rebuilt, folded, laid out, legalised, fused, scheduled.

Its operators become a Relax module of its own first. Kernels that bring a value from one format to
another are scheduled alike.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.ir import Tuple

from collage_engine.kernels.cpu.legalization import legalization
from collage_engine.kernels.scheduler import Kernel, kernel_for
from collage_engine.kernels.target import Cpu, cpu
from collage_engine.records.format import TO_LOGICAL, TO_STORED, stored_type
from collage_engine.records.graph import OperatorNumber, TensorType, members
from collage_engine.records.precision import PRODUCTS, is_reduced
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import KERNEL_NODES, Function
from collage_engine.toolchains.tvm import bfloat16, channels_last, transposed
from collage_engine.toolchains.tvm.kernel_nodes import NamingBuilder, nodes_of_calls
from collage_engine.toolchains.tvm.quantized import Integers, Writer


def relax_module(
    function: Function, writer: type[Writer] = Writer
) -> tuple[tvm.IRModule, frozenset[int] | None]:
    """Return ``main(inputs) → outputs`` with the model's own operators, constants in place.

    Quantised composites are integer computations from here on. Types are logical ones.

    Returns:
        The module; and which of its products, by their order, are left in float32 where the others
        are to be rounded, or None where none is to be rounded.
    """
    rebuilding = _Rebuilding(function, writer)
    module = rebuilding.module()
    if not is_reduced(function.instance):
        return module, None
    full = function.left_full
    return module, frozenset(k for k, index in enumerate(rebuilding.products) if index in full)


class _Rebuilding:
    """A function's operators emitted one by one, with the values that are known so far."""

    def __init__(self, function: Function, writer: type[Writer]) -> None:
        self.function = function
        self.model, self.graph = function.model, function.graph
        self.builder = NamingBuilder()
        self.known: dict[int, Any] = {}
        """The Relax values by index of the graph's values."""
        self.functions = {
            variable: self.builder.add_func(callee, variable.name_hint)
            for variable, callee in self.model.functions.items()
        }
        self.products: list[OperatorNumber] = []
        """Matrix products and convolutions that were emitted as they are, in order."""
        self.integers = Integers(function, writer)

    def module(self) -> tvm.IRModule:
        """Return the module; ``ToolchainError`` where an output is not computed."""
        function, builder = self.function, self.builder
        for index in function.inputs:
            kind = self.graph.values[index].type
            self.known[index] = relax.Var(f"v{index}", relax.TensorType(kind.shape, kind.dtype))
        with builder.function("main", list(self.known.values())):
            with builder.dataflow():
                for index in function.members:
                    self._emit(index)
                results = [self.known.get(index) for index in function.outputs]
                if any(r is None for r in results):
                    raise ToolchainError(f"{function.symbol} gives a value it does not compute")
                result = builder.emit_output(results[0] if len(results) == 1 else Tuple(results))
            builder.emit_func_output(result)
        return relax.transform.DeadCodeElimination(["main"])(builder.get())

    def _emit(self, index: OperatorNumber) -> None:
        """Emit an operator: an integer composite, or the operators as they are."""
        integers = self.integers
        if integers.skips(index):
            return
        composite = integers.found.get(index)
        self.builder.name_by([index] if composite is None else members(composite.nodes))
        whole = integers.emit(
            self.builder, index, lambda value: self.model.relax_value(value, self.known)
        )
        if whole is not None:
            self.known[index] = whole
            return
        for each in integers.opened(index):
            if self.graph.nodes[each].op in PRODUCTS:
                self.products.append(each)
            self.builder.name_by([each])
            self.model.emit(self.builder, each, self.known, self.functions)


def fused(module: tvm.IRModule, cpu: Cpu) -> tvm.IRModule:
    """Return the module legalised and fused: ``main`` calls PrimFuncs without schedules.

    Its attribute ``KERNEL_NODES`` says which nodes of the graph each of the calls computes.
    """
    legal = legalization(cpu)(module)
    groups = tvm.transform.Sequential(
        [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    )(legal)
    kernels = tvm.transform.Sequential(
        [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    )(groups)
    nodes = [(callee, sorted(found)) for callee, found in nodes_of_calls(legal, groups)]
    return kernels.with_attr(KERNEL_NODES, json.dumps(nodes))


def lower_module(
    module: tvm.IRModule,
    cpu: Cpu,
    full: Collection[int] | None = None,
    takes: Collection[int] = (),
    gives: Collection[int] = (),
) -> tvm.IRModule:
    """Return a module with everything scheduled that ``main`` does.

    Args:
        module: The module.
        cpu: The processor.
        full: Products, by their order, that are left in float32 where the others are rounded to
            bfloat16; None: none is rounded.
        takes: Positions of the parameters that are images with channels last.
        gives: Positions of the results that are to be.
    """
    narrow = full is not None and cpu.bfloat16
    images = narrow and bfloat16.has_images(module["main"])
    wide = channels_last.worthwhile(module["main"], cpu.lanes("float32"))
    if takes or gives or images or wide:
        module = channels_last.convert(module, takes, gives)
    module = transposed.rewritten(module)
    if full is not None and narrow:
        module = bfloat16.with_rounded_products(module, full, cpu)
    legal = fused(module, cpu)
    for variable, function in list(legal.functions.items()):
        if isinstance(function, tirx.PrimFunc):
            legal.update_func(variable, kernel_for(function, cpu).function)
    return legal


def lower_function(function: Function) -> tvm.IRModule:
    """Return a function's operators, scheduled for the processor."""
    module, full = relax_module(function)
    takes = [k for k, index in enumerate(function.inputs) if index in function.takes]
    gives = [k for k, index in enumerate(function.outputs) if index in function.gives]
    return lower_module(module, cpu(function.instance.threads), full, takes, gives)


def conversion(kind: TensorType, source: str, target: str, threads: int) -> Kernel:
    """Return a scheduled kernel that brings a value from one stored form to another.

    It is a transposition in squares held in registers (``cpu/pointwise``), shared
    by the threads where it is long enough.

    Args:
        kind: The value's logical type.
        source: The format that it has.
        target: The format that it gets.
        threads: How many threads may share the work on the processor.
    """
    plain = tuple(range(len(kind.shape)))
    to_logical = TO_LOGICAL.get(source, plain)
    given = stored_type(kind, source)
    value = te.placeholder(given.shape, given.dtype, "value")
    moved = topi.transpose(value, [to_logical[axis] for axis in TO_STORED.get(target, plain)])
    function = te.create_prim_func([value, moved]).without_attr("global_symbol")
    return kernel_for(function, cpu(threads))
