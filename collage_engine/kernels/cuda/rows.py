"""Joins reductions along the last axis with the elementwise operators around them, into one kernel.

Normalisations and softmaxes as exporters write them are chains: a residual sum, a cast, a square,
a mean, a root, a product; a scale, a mask, a softmax, a guard against NaN; embeddings, their sum, a
layer norm. TVM's fusion joins what follows a reduction, not what precedes it, nor what goes around
it. Here a group is everything that only its last value depends on, which is its one result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from collage_engine.kernels.relax_values import dtype_of, name_of, static_shape
from collage_engine.machine.cuda import SHARED_BYTES

ROWS = "collage.rows"
"""Attribute of a function that is to become one kernel."""
ROWS_NAME = "_rows"
"""What the name of such a kernel ends with."""
ELEMENTWISE = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "where", "clip"),
        *("astype", "sqrt", "rsqrt", "exp", "tanh", "erf", "sigmoid", "negative", "abs", "square"),
        *("isnan", "nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu"),
    )
)
SOFTMAX = "relax.nn.softmax"
REDUCTIONS = frozenset(("relax.mean", "relax.sum", "relax.max", "relax.nn.layer_norm", SOFTMAX))
"""Operators with rows as their domain, where they reduce the last axis."""
TAKE = "relax.take"
"""The operator that looks up embeddings: rows of a constant table become rows of the result."""
BYTES = 4
"""Bytes of an element of what is kept between two steps, at most."""


def with_joined_rows(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose ``main`` calls a function for each group, marked by ``ROWS``."""
    groups = _groups(module["main"])
    if not groups:
        return module
    outliner = _Outliner(module, groups)
    changed = outliner.visit_expr(module["main"])
    outliner.builder_.update_func(module.get_global_var("main"), changed)
    joined: tvm.IRModule = outliner.builder_.get()
    return relax.transform.CanonicalizeBindings()(joined)


def as_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """Return a legalised module whose groups are functions that ``FuseTIR`` makes kernels of."""
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function) and function.attrs and ROWS in function.attrs:
            module.update_func(variable, function.with_attr("Primitive", 1))
    return module


def _groups(main: relax.Function) -> dict[relax.Var, list[relax.VarBinding]]:
    """Return the bindings of each group by its result's variable."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    users: dict[relax.Var, set[relax.Var | None]] = {}
    for user, value in (*((each.var, each.value) for each in bindings), (None, main.body.body)):
        for variable in relax.analysis.free_vars(value):
            users.setdefault(variable, set()).add(user)
    rows_of = [_rows_of(binding) for binding in bindings]
    groups: dict[relax.Var, list[relax.VarBinding]] = {}
    taken: set[relax.Var] = set()
    for end, last in reversed(list(enumerate(bindings))):
        if rows_of[end] is None or last.var in taken:
            continue
        inside: set[relax.Var | None] = {last.var}
        group = [last]
        for number in range(end - 1, -1, -1):
            binding = bindings[number]
            if rows_of[number] != rows_of[end] or binding.var in taken:
                continue
            readers = users.get(binding.var)
            if readers and readers <= inside:
                inside.add(binding.var)
                group.insert(0, binding)
        names = {name_of(each.value) for each in group}
        if (len(group) > 1 or SOFTMAX in names) and names & REDUCTIONS and _fits_block(group):
            groups[last.var] = group
            taken |= {binding.var for binding in group}
    return groups


def _fits_block(group: list[relax.VarBinding]) -> bool:
    """Tell whether a row of every step fits into a block's shared memory together."""
    columns = max(int(shape[-1]) for each in group if (shape := static_shape(each.value)))
    return len(group) * columns * BYTES <= SHARED_BYTES


def _rows_of(binding: relax.VarBinding) -> tuple[int, ...] | None:
    """Return the rows on which an operator works one by one; None: it does not."""
    name, shape = name_of(binding.value), None
    if name in ELEMENTWISE or name in REDUCTIONS or name == TAKE:
        shape = static_shape(binding.value)
    if not shape or len(shape) < 2:
        return None
    if name in ELEMENTWISE:
        return tuple(shape[:-1])
    first = static_shape(binding.value.args[0]) or ()
    if name == TAKE:
        is_table = len(first) == 2 and isinstance(binding.value.args[0], tvm.ir.GenericConst)
        return tuple(shape[:-1]) if is_table and int(binding.value.attrs["axis"]) % 2 == 0 else None
    attributes = binding.value.attrs
    axes = attributes["axes" if name.endswith("layer_norm") else "axis"]
    axes = [int(axis) % len(shape) for axis in ([axes] if isinstance(axes, int) else axes or ())]
    keeps = name.endswith(("softmax", "layer_norm")) or bool(attributes["keepdims"])
    along_last = axes == [len(shape) - 1] and keeps and first[:-1] == shape[:-1]
    return tuple(shape[:-1]) if along_last else None


@mutator
class _Outliner(PyExprMutator):  # type: ignore[misc,unused-ignore]
    """Replaces the bindings of each group by a call of a function that holds them."""

    def __init__(
        self, module: tvm.IRModule, groups: Mapping[relax.Var, list[relax.VarBinding]]
    ) -> None:
        super().__init__(module)
        self._groups = groups
        self._inner = {binding.var for last, group in groups.items() for binding in group} - set(
            groups
        )

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Leave out what a group holds, and call its function where its result is bound."""
        if binding.var in self._inner:
            return
        group = self._groups.get(binding.var)
        if group is None:
            super().visit_var_binding_(binding)
            return
        function, arguments = _function_of(group)
        reductions = [name for each in group if (name := name_of(each.value)) in REDUCTIONS]
        name = f"{reductions[-1].rpartition('.')[2]}{ROWS_NAME}"
        variable = self.builder_.add_func(function, name)
        call = relax.Call(variable, [self.visit_expr(argument) for argument in arguments])
        result = self.builder_.emit(call)
        self.set_var_remap(binding.var, result)


def _function_of(group: list[relax.VarBinding]) -> tuple[relax.Function, list[Any]]:
    """Return a function of some bindings, whose variables are its own, and its arguments.

    Constants are parameters, but for numbers that TVM writes into the code of an operator.
    """
    made = {binding.var for binding in group}
    read = [v for each in group for v in relax.analysis.free_vars(each.value) if v not in made]
    parameters: list[Any] = list(dict.fromkeys(read))
    arguments = list(parameters)

    def lifted(argument: Any, call: relax.Call) -> Any:
        is_number = not static_shape(argument) and call.op.name != "relax.where"
        if not isinstance(argument, tvm.ir.GenericConst) or is_number:
            return argument
        parameters.append(relax.Var(f"constant{len(parameters)}", argument.ty))
        arguments.append(argument)
        return parameters[-1]

    bindings: list[relax.VarBinding] = []

    def bound(value: Any) -> relax.Var:
        value = relax.BlockBuilder().normalize(value)
        bindings.append(
            relax.VarBinding(relax.DataflowVar(f"step{len(bindings)}", value.ty), value)
        )
        return bindings[-1].var

    for binding in group:
        call = binding.value
        arguments_ = [lifted(arg, call) for arg in call.args]
        dtype = dtype_of(call)
        is_narrow = name_of(binding.value) == SOFTMAX and dtype != "float32"
        if is_narrow:  # sums of half precision would be rounded at each step
            arguments_ = [bound(relax.op.astype(arguments_[0], "float32"))]
        value = relax.BlockBuilder().normalize(relax.Call(call.op, arguments_, call.attrs))
        if is_narrow:
            value = relax.BlockBuilder().normalize(relax.op.astype(bound(value), dtype))
        bindings.append(relax.VarBinding(binding.var, value))
    result = relax.Var("result", bindings[-1].value.ty)
    bindings[-1] = relax.VarBinding(result, bindings[-1].value)
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    function = relax.Function(parameters, body, result.ty, is_pure=True)
    copied: relax.Function = relax.utils.copy_with_new_vars(function)
    return copied.with_attr(ROWS, 1), arguments
