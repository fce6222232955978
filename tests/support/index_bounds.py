"""Finds loads and stores of a kernel's TIR that reach beyond their buffers, by evaluating indices.

A kernel that reads past a buffer gives the right numbers as long as memory follows the buffer, so
that comparing results does not find it. Here every index is evaluated for all values of the loop
variables it depends on, under the conditions around the access, without running the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.ir.prim import expr as prim

from collage_engine.kernels.expressions import call_name, children, walk
from collage_engine.kernels.program import shape_of

MOST_POINTS = 1 << 26
"""Points of the grid of loop variables that one access may need (chosen: half a gigabyte of int64);
a kernel that needs more is too large a case for this check."""


def _divide(a: Any, b: Any) -> Any:
    """Returns the quotient rounded towards zero."""
    return (a - np.fmod(a, b)) // b


_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    prim.Add: np.add,
    prim.Sub: np.subtract,
    prim.Mul: np.multiply,
    prim.Div: _divide,
    prim.Mod: np.fmod,
    prim.FloorDiv: np.floor_divide,
    prim.FloorMod: np.mod,
    prim.Min: np.minimum,
    prim.Max: np.maximum,
    prim.EQ: np.equal,
    prim.NE: np.not_equal,
    prim.LT: np.less,
    prim.LE: np.less_equal,
    prim.GT: np.greater,
    prim.GE: np.greater_equal,
    prim.And: np.logical_and,
    prim.Or: np.logical_or,
}


def out_of_bounds(function: Any) -> list[str]:
    """Returns the loads and stores of a function that reach beyond their buffers.

    Args:
        function: A ``PrimFunc`` as a rule writes it, before TVM lowers it.

    Returns:
        One line for each such access: the buffer, its number of elements and the least and the
        greatest element the access reaches. Left out are prefetches, which may name any address,
        and indices that depend on data or on a call. Such conditions are taken to hold.

    Raises:
        NotImplementedError: If an index has a form that is not understood.
    """
    bounds = _Bounds()
    bounds.statement(function.body, ())
    return bounds.found


@dataclass
class _Bounds:
    """The walk over a function's statements, with what is known of its variables."""

    found: list[str] = field(default_factory=list)
    values: dict[Any, Any] = field(default_factory=dict)
    """What each variable that is bound to a value stands for."""
    extents: dict[Any, int] = field(default_factory=dict)
    """The iterations of each loop, at most, by its variable."""

    def statement(self, s: Any, conditions: tuple[Any, ...]) -> None:
        """Checks a statement that runs where all the conditions hold."""
        if isinstance(s, tirx.SeqStmt):
            for part in s.seq:
                self.statement(part, conditions)
        elif isinstance(s, s_tir.SBlockRealize):
            self.statement(s.block.body, conditions)
        elif isinstance(s, tirx.AttrStmt):
            self.statement(s.body, conditions)
        elif isinstance(s, tirx.For):
            self.loop(s, conditions)
        elif isinstance(s, tirx.IfThenElse):
            self.expression(s.condition, conditions)
            self.statement(s.then_case, (*conditions, s.condition))
            if s.else_case is not None:
                self.statement(s.else_case, (*conditions, prim.Not(s.condition)))
        elif isinstance(s, tirx.Bind):
            self.values[s.var] = s.value
            self.expression(s.value, conditions)
        elif isinstance(s, tirx.BufferStore):
            self.expression(s.value, conditions)
            self.access("stores to", s.buffer, s.indices, conditions)
        elif isinstance(s, tirx.Evaluate):
            self.expression(s.value, conditions)
        elif not isinstance(s, (tirx.AllocBuffer, tirx.DeclBuffer)):
            raise NotImplementedError(f"statement {type(s).__name__}")

    def loop(self, s: Any, conditions: tuple[Any, ...]) -> None:
        """Checks a loop, whose extent may depend on the variables of loops around it."""
        if not (isinstance(s.min, prim.IntImm) and int(s.min) == 0):
            raise NotImplementedError(f"a loop from {s.min}")
        if isinstance(s.extent, prim.IntImm):
            self.extents[s.loop_var] = int(s.extent)
        else:
            self.extents[s.loop_var] = max(0, int(np.max(self.evaluate([s.extent])[0])))
            conditions = (*conditions, prim.LT(s.loop_var, s.extent))
        if self.extents[s.loop_var]:
            self.statement(s.body, conditions)

    def expression(self, e: Any, conditions: tuple[Any, ...]) -> None:
        """Checks all loads of an expression."""
        if isinstance(e, Call) and call_name(e) == "address_of":
            return
        if isinstance(e, Call) and call_name(e) == "if_then_else":
            condition, then, otherwise = e.args
            self.expression(condition, conditions)
            self.expression(then, (*conditions, condition))
            self.expression(otherwise, (*conditions, prim.Not(condition)))
            return
        if isinstance(e, prim.Let):
            self.values[e.var] = e.value
        if isinstance(e, TensorLoad):
            for index in e.indices:
                self.expression(index, conditions)
            self.access("reads", e.source, e.indices, conditions)
            return
        if isinstance(e, (prim.Ramp, prim.Broadcast)):
            e = e.base if isinstance(e, prim.Ramp) else e.value
            self.expression(e, conditions)
            return
        for child in e.vectors if isinstance(e, prim.Shuffle) else children(e):
            self.expression(child, conditions)

    def access(
        self, verb: str, buffer: Any, indices: Sequence[Any], conditions: tuple[Any, ...]
    ) -> None:
        """Checks the least and the greatest element that an access reaches."""
        shape = shape_of(buffer)
        elements = int(np.prod(shape, dtype=np.int64))
        flat, width = prim.IntImm("int64", 0), 0
        for extent, index in zip(shape, indices, strict=True):
            if isinstance(index, prim.Ramp):
                index, width = index.base, (int(index.lanes) - 1) * int(index.stride)
            flat = flat * extent + index
        if self.depends_on_data(flat):
            return
        (at,) = self.evaluate([flat])
        if at.min() >= 0 and at.max() + width < elements:
            return
        known = [c for c in conditions if not self.depends_on_data(c)]
        at, *held = np.broadcast_arrays(*self.evaluate([flat, *known]))
        reached = at[np.logical_and.reduce(held)] if held else at
        if reached.size and not (reached.min() >= 0 and reached.max() + width < elements):
            self.found.append(
                f"{verb} {buffer.name} of {elements} elements from {reached.min()} "
                f"to {reached.max() + width}: {list(indices)}"
            )

    def evaluate(self, wanted: Sequence[Any]) -> list[np.ndarray]:
        """Returns the expressions' values, with one axis for each loop variable they depend on."""
        variables = list(dict.fromkeys(v for e in wanted for v in self.variables(e)))
        sizes = [self.extents[v] for v in variables]
        if np.prod(sizes, dtype=np.float64) > MOST_POINTS:
            raise NotImplementedError(f"a grid of {sizes} points")
        grid = dict(zip(variables, np.ix_(*map(np.arange, sizes)), strict=True)) if sizes else {}
        return [np.asarray(self.value(e, grid)) for e in wanted]

    def variables(self, e: Any) -> Iterator[Any]:
        """Yields the loop variables that an expression depends on."""
        for node in walk(e):
            if node in self.extents:
                yield node
            elif node in self.values:
                yield from self.variables(self.values[node])

    def depends_on_data(self, e: Any) -> bool:
        """Whether an expression, or what its variables stand for, contains a load or a call.

        Calls round coordinates that are computed in floating point.
        """
        return any(
            isinstance(node, (TensorLoad, Call))
            or (node in self.values and self.depends_on_data(self.values[node]))
            for node in walk(e)
        )

    def value(self, e: Any, grid: dict[Any, np.ndarray]) -> Any:
        """Evaluates an expression over the grid of loop variables."""
        if isinstance(e, prim.IntImm):
            return int(e)
        if e in grid:
            return grid[e]
        if e in self.values:
            return self.value(self.values[e], grid)
        if type(e) in _ARITHMETIC:
            return _ARITHMETIC[type(e)](self.value(e.a, grid), self.value(e.b, grid))
        if isinstance(e, prim.Not):
            return np.logical_not(self.value(e.a, grid))
        if isinstance(e, prim.Cast):
            return self.value(e.value, grid)
        if isinstance(e, prim.Select):
            parts = (e.condition, e.true_value, e.false_value)
            return np.where(*(self.value(part, grid) for part in parts))
        raise NotImplementedError(f"index expression {type(e).__name__}")
