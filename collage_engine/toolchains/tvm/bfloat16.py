"""Rounds the operands of products to bfloat16, where that is faster.

A pass over a function whose images are channels last: convolutions and matrix products with
constant weights become kernels that multiply bfloat16 numbers and add in float32. What they read
is rounded by its maker, in the same kernel where nobody else needs it in float32. Other values stay
float32, so that rounding errors do not add up in sums that run through a model, unless they are
too large for the caches.

Left in float32: what the instance says, depthwise and narrow convolutions, and those that
Winograd's method saves more.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from collage_engine.kernels.bfloat16_numbers import real, rounded, widened
from collage_engine.kernels.cpu.convolution import NO_KERNEL, ConvProblem, described
from collage_engine.kernels.cpu.dots import FEW, DotProblem
from collage_engine.kernels.cpu.winograd import cost as winograd
from collage_engine.kernels.relax_values import (
    ANCHOR,
    both_sides,
    const,
    constant_of,
    dtype_of,
    name_of,
    static_shape,
)
from collage_engine.kernels.scheduler import RULES, decide
from collage_engine.kernels.target import Cpu
from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import OperatorNumber
from collage_engine.records.precision import PRODUCTS
from collage_engine.toolchains.tvm.channels_last import is_convolution
from collage_engine.toolchains.tvm.transposed import sub_pixels


def has_images(function: relax.Function) -> bool:
    """Tell whether there are convolutions, which read channels last what is rounded."""
    return any(
        is_convolution(binding.value) or sub_pixels(binding.value, last=True) is not None
        for block in function.body.blocks
        for binding in block.bindings
    )


def with_rounded_products(module: tvm.IRModule, full: Collection[int], cpu: Cpu) -> tvm.IRModule:
    """Return the module with the products of ``main`` in bfloat16, those at ``full`` left out."""
    rounding = _Rounding(module, frozenset(full), cpu)
    main = module.get_global_var("main")
    rounding.builder_.update_func(main, rounding.visit_expr(module["main"]))
    return rounding.builder_.get()


def _large(function: relax.Function, full: frozenset[int], cpu: Cpu) -> set[Any]:
    """Return the values that are held in bfloat16, being too large for the second-level cache.

    They are read by products that take them in bfloat16, and else by sums only. (What only sums
    read may never lie in memory.)
    """
    position = 0
    readers: dict[Any, bool] = {}
    multiplied: set[Any] = set()
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            name = name_of(value).removeprefix("relax.")
            good = name == "add"
            if name in PRODUCTS:
                good = position not in full and _reads_halves(value, cpu)
                position += 1
            for used in relax.analysis.free_vars(value):
                readers[used] = readers.get(used, True) and good
                if name in PRODUCTS:
                    multiplied.add(used)
    for used in relax.analysis.free_vars(function.body.body):
        readers[used] = False
    return {
        used
        for used, good in readers.items()
        if good
        and used in multiplied
        and not any(used.same_as(parameter) for parameter in function.params)
        and dtype_of(used) == "float32"
        and 4 * prod(static_shape(used) or (0,)) > cpu.l2_bytes
    }


def _reads_halves(call: Call, cpu: Cpu) -> bool:
    """Tell whether a product reads its data in bfloat16."""
    if name_of(call) != "relax.nn.conv2d":
        return _matmul_sizes(call) is not None
    return _depthwise(call) is not None or _conv_sizes(call, cpu) is not None


def _depthwise(call: Call) -> tuple[ConvProblem, np.ndarray] | None:
    """Return a depthwise convolution whose kernel copies its data, and can widen it then."""
    description = described(call)
    if description is None or dtype_of(call) != "float32":
        return None
    geometry = description[0]
    padded = geometry.depthwise and geometry.channels_last and any(geometry.padding)
    return description if padded and geometry.dims == 2 else None


def rounds(graph: DataflowGraph, index: OperatorNumber, cpu: Cpu) -> bool:
    """Tell from a product's sizes whether an instance in bfloat16 would round its operands.

    Args:
        graph: The dataflow graph, whose convolutions are channels first.
        index: The product.
        cpu: The processor, on whose caches and vectors Winograd's method depends.
    """
    node = graph.nodes[index]
    left, right = (graph.values[source] for source in node.inputs[:2])
    if not right.constant or left.type.dtype != "float32":
        return False
    if node.op == "matmul":
        return _matmul_problem(left.type.shape, right.type.shape, node.type.shape) is not None
    attributes = node.attributes
    if node.op != "nn.conv2d" or attributes["data_layout"] != "NCHW":
        return False
    batch, channels, *size = left.type.shape
    _, channels_out, *size_out = node.type.shape
    geometry = ConvProblem(
        True,
        (batch, *size, channels),
        (batch, *size_out, channels_out),
        right.type.shape,
        int(attributes["groups"]),
        tuple(attributes["strides"]),
        both_sides(attributes["padding"], 2),
        tuple(attributes["dilation"]),
    )
    return _conv_problem(geometry, cpu) is not None


def _conv_sizes(call: Call, cpu: Cpu) -> tuple[DotProblem, np.ndarray] | None:
    """Return a convolution that is faster in bfloat16, and its weight."""
    description = described(call)
    if description is None or dtype_of(call) != "float32":
        return None
    geometry, weight = description
    sizes = _conv_problem(geometry, cpu)
    return None if sizes is None else (sizes, weight)


def _conv_problem(geometry: ConvProblem, cpu: Cpu) -> DotProblem | None:
    """Return the sizes of a convolution that is faster in bfloat16; None where it is not."""
    if not geometry.channels_last or geometry.dims != 2 or geometry.depthwise:
        return None
    co, ci = geometry.co_group, geometry.ci_group
    sizes = DotProblem(
        True,
        geometry.data,
        geometry.out_shape,
        geometry.weight,
        geometry.groups,
        geometry.strides,
        geometry.padding,
        geometry.dilation,
        "bfloat16",
    )
    if co < FEW or (ci < FEW and not sizes.merged):
        return None
    if winograd.takes(geometry, cpu) and winograd.worthwhile(cpu, co, ci, geometry.out, 2):
        return None
    return sizes


def _matmul_sizes(call: Call) -> tuple[DotProblem, np.ndarray] | None:
    """Return a product with a constant right operand, and that operand transposed."""
    if name_of(call) != "relax.matmul":
        return None
    left, right = call.args
    shape, out, weight = static_shape(left), static_shape(call), constant_of(right)
    if shape is None or out is None or weight is None or weight.dtype != np.float32:
        return None
    problem = _matmul_problem(shape, weight.shape, out)
    if problem is None or dtype_of(left) != "float32":
        return None
    return problem, weight.reshape(weight.shape[-2:]).T


def _matmul_problem(
    shape: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...]
) -> DotProblem | None:
    """Return the sizes of a product that is faster in bfloat16; None where it is not."""
    if len(shape) < 2 or not 2 <= len(weight) <= len(shape) or prod(weight[:-2]) != 1:
        return None
    depth, columns = weight[-2:]
    if min(depth, columns) < FEW:
        return None
    return DotProblem(True, shape, out, (columns, depth), *NO_KERNEL, "bfloat16")


@mutator
class _Rounding(PyExprMutator):  # type: ignore[misc]
    """The rewriter that rounds the operands of products one by one, in order."""

    def __init__(self, module: tvm.IRModule, full: frozenset[int], cpu: Cpu) -> None:
        super().__init__(module)
        self.full, self.cpu = full, cpu
        self.position = 0
        self.halves: dict[Any, Any] = {}
        self.large = _large(module["main"], self.full, cpu)

    def visit_call_(self, call: Call) -> Any:
        large = [isinstance(a, relax.Var) and a in self.large for a in call.args]
        call = self.visit_expr_post_order(call)
        name = name_of(call).removeprefix("relax.")
        if name == "add" and any(large):
            operands = [
                self._kernel(widened, self._half(a), "widened") if kept else a
                for a, kept in zip(call.args, large, strict=True)
            ]
            return Call(call.op, operands, call.attrs, call.ty_args)
        if name not in PRODUCTS:
            return call
        self.position += 1
        if self.position - 1 in self.full:
            return call
        if large[0] and name == "nn.conv2d":
            depthwise = _depthwise(call)
            if depthwise is not None:
                return self._widening(call, *depthwise)
        if name == "nn.conv2d":
            sizes, hint = _conv_sizes(call, self.cpu), "bfloat16_conv2d"
        else:
            sizes, hint = _matmul_sizes(call), "bfloat16_matmul"
        if sizes is None:
            return call
        problem, weight = sizes
        decision = decide(problem, self.cpu)
        if decision is None:
            return call
        return self.builder_.call_te(
            decision.reference,
            self._half(call.args[0]),
            const(decision.pack(self.cpu, weight)),
            primfunc_name_hint=hint,
            primfunc_attrs=ANCHOR,
        )

    def _kernel(self, body: Any, argument: Any, name: str) -> Any:
        builder = self.builder_
        return builder.emit(builder.call_te(body, argument, primfunc_name_hint=name))

    def _half(self, data: Any) -> Any:
        """Return the value rounded, by one kernel for all who read it."""
        if data not in self.halves:
            self.halves[data] = self._kernel(rounded, data, "rounded")
        return self.halves[data]

    def _widening(self, call: Call, geometry: ConvProblem, weight: np.ndarray) -> Any:
        """Return a depthwise convolution in float32 over data held in bfloat16."""
        decision = RULES.default(geometry, self.cpu)
        assert decision is not None  # depthwise ones have a rule
        return self.builder_.call_te(
            lambda x, w: decision.reference(lambda *i: real(x(*i)), w),
            self._half(call.args[0]),
            const(decision.pack(self.cpu, weight)),
            primfunc_name_hint="conv2d",
            primfunc_attrs=ANCHOR,
        )
