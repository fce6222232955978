"""Rebuilds a function's operators as a Relax module of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Tuple

from collage_engine.records.graph import OperatorNumber, members
from collage_engine.records.precision import PRODUCTS, is_reduced
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.tvm.kernel_nodes import NamingBuilder
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
        self.builder.name_by(self._computed_at(index))
        whole = integers.emit(self.builder, index, self._value_of)
        if whole is not None:
            self.known[index] = whole
            return
        for each in integers.opened(index):
            if self.graph.nodes[each].op in PRODUCTS:
                self.products.append(each)
            self.builder.name_by([each])
            self.model.emit(self.builder, each, self.known, self.functions)

    def _computed_at(self, index: OperatorNumber) -> Sequence[OperatorNumber]:
        """Return the operators that are emitted as one with an operator: those of its composite."""
        whole = self.integers.found.get(index)
        return [index] if whole is None else list(members(whole.nodes))

    def _value_of(self, index: int) -> Any:
        """Return the Relax value of what is made outside a composite."""
        return self.model.relax_value(index, self.known)
