"""Reads and rewrites TIR expressions (TVM's wheel has no Python functor for statements)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from tvm import tirx
from tvm.ir import Call, Expr, Op, StringImm, Var
from tvm.ir.expr import TensorLoad
from tvm.ir.prim import expr as prim

BINARY = (
    prim.Add,
    prim.Sub,
    prim.Mul,
    prim.Div,
    prim.Mod,
    prim.FloorDiv,
    prim.FloorMod,
    prim.Min,
    prim.Max,
    prim.EQ,
    prim.NE,
    prim.LT,
    prim.LE,
    prim.GT,
    prim.GE,
    prim.And,
    prim.Or,
    prim.LShift,
    prim.RShift,
    prim.BitwiseAnd,
    prim.BitwiseOr,
    prim.BitwiseXor,
)
EXPENSIVE = {
    "exp",
    "exp2",
    "exp10",
    "erf",
    "tanh",
    "sigmoid",
    "log",
    "log2",
    "log1p",
    "pow",
    "sin",
    "cos",
    "tan",
    "atan",
    "asin",
    "acos",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "atan2",
}

_BRANCHING = {"exp", "erf", "tanh", "sigmoid", "pow"}
"""Written out with selects whose conditions hold the argument (``vector_math``)."""


class UnsupportedPattern(Exception):
    """A TIR construct these schedules do not handle; the kernel keeps its plain form."""


def call_name(call: Call) -> str:
    """Return ``exp`` for a call of the intrinsic ``tirx.exp``; an empty text for other calls."""
    if not isinstance(call.op, Op):
        return ""
    return str(call.op.name).rsplit(".", 1)[-1]


_PARTS: tuple[tuple[tuple[type, ...], Callable[[Any], tuple[Expr, ...]]], ...] = (
    (BINARY, lambda e: (e.a, e.b)),
    ((TensorLoad,), lambda e: tuple(e.indices)),
    ((Call,), lambda e: tuple(a for a in e.args if isinstance(a, Expr))),
    ((prim.Cast,), lambda e: (e.value,)),
    ((prim.Select,), lambda e: (e.condition, e.true_value, e.false_value)),
    ((prim.Not, prim.BitwiseNot), lambda e: (e.a,)),
    ((prim.Let,), lambda e: (e.value, e.body)),
    ((Var, prim.IntImm, prim.FloatImm, StringImm), lambda e: ()),
)
"""Functions that return the direct sub-expressions of an expression, by its classes."""


@cache
def _parts_of(kind: type) -> Callable[[Any], tuple[Expr, ...]]:
    """Look up how to take an expression apart; kept, since TVM's classes are slow to be asked."""
    for kinds, parts in _PARTS:
        if issubclass(kind, kinds):
            return parts
    raise UnsupportedPattern(f"expression {kind.__name__}")


def children(e: Expr) -> tuple[Expr, ...]:
    """Return the direct sub-expressions."""
    kind: type = type(e)
    return _parts_of(kind)(e)


def walk(e: Expr) -> Iterator[Expr]:
    """Yield the expression and everything in it, before its parts."""
    stack = [e]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def loads(e: Expr) -> Iterator[TensorLoad]:
    """Return all loads of an expression."""
    return (n for n in walk(e) if isinstance(n, TensorLoad))


def is_expensive(e: Expr) -> bool:
    """Tells whether evaluating it costs a transcendental function (so it is not repeated)."""
    return any(isinstance(n, Call) and call_name(n) in EXPENSIVE for n in walk(e))


def nesting(e: Expr) -> int:
    """Return how many functions that are written out with selects stand within each other, at most.

    TVM simplifies a condition anew in each branch of its select, so that each more of them takes
    it ten to a hundred times as long: two within a third (Mish) take it hours. The larger or
    smaller of two values counts too, since it is written out with its operands twice.
    """
    own = isinstance(e, Call) and call_name(e) in _BRANCHING
    if isinstance(e, (prim.Max, prim.Min)) and str(e.ty.dtype).startswith("float"):
        own = not any(isinstance(part, prim.FloatImm) for part in (e.a, e.b))
    return own + max(map(nesting, children(e)), default=0)


def rewrite(e: Expr, replace: Callable[[Expr], Expr | None]) -> Expr:
    """Return the expression with nodes replaced, the outermost first.

    Args:
        e: The expression.
        replace: A function that returns what stands for a node; None leaves the node and goes on to
            its sub-expressions.
    """
    new = replace(e)
    if new is not None:
        return new
    if isinstance(e, BINARY):
        a, b = rewrite(e.a, replace), rewrite(e.b, replace)
        return e if a is e.a and b is e.b else type(e)(a, b)
    if isinstance(e, TensorLoad):
        return tirx.BufferLoad(e.source, [rewrite(i, replace) for i in e.indices])
    if isinstance(e, Call):
        arguments = [rewrite(a, replace) if isinstance(a, Expr) else a for a in e.args]
        return Call(e.op, arguments, e.attrs, e.ty_args, e.span, e.ty)
    if isinstance(e, prim.Cast):
        return prim.Cast(e.ty, rewrite(e.value, replace))
    if isinstance(e, prim.Select):
        return prim.Select(
            rewrite(e.condition, replace),
            rewrite(e.true_value, replace),
            rewrite(e.false_value, replace),
        )
    if isinstance(e, (prim.Not, prim.BitwiseNot)):
        return type(e)(rewrite(e.a, replace))
    if isinstance(e, prim.Let):
        # Each copy of an expression names its values anew: TVM binds a variable once.
        var = tirx.Var(e.var.name, e.var.ty)
        body = substitute(rewrite(e.body, replace), {e.var: var})
        return prim.Let(var, rewrite(e.value, replace), body)
    if isinstance(e, (Var, prim.IntImm, prim.FloatImm, StringImm)):
        return e
    raise UnsupportedPattern(f"expression {type(e).__name__}")


def substitute(e: Expr, values: Mapping[Var, Any]) -> Expr:
    """Return the expression with variables replaced; an int becomes a constant of type int64."""

    def replace(node: Expr) -> Expr | None:
        if not isinstance(node, Var) or node not in values:
            return None
        value = values[node]
        return tirx.const(value, "int64") if isinstance(value, int) else value

    return rewrite(e, replace)


def equal(a: Expr, b: Expr) -> bool:
    """Return the same expression, free variables by identity."""
    if a is b or a.same_as(b):
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (prim.IntImm, prim.FloatImm)):
        return a.value == b.value and str(a.ty) == str(b.ty)
    if isinstance(a, Var):
        return False
    if isinstance(a, TensorLoad) and not a.source.same_as(b.source):
        return False
    if isinstance(a, Call) and not a.op.same_as(b.op):
        return False
    if isinstance(a, prim.Cast) and str(a.ty) != str(b.ty):
        return False
    x, y = children(a), children(b)
    return (
        len(x) == len(y)
        and bool(x or not isinstance(a, StringImm))
        and all(equal(p, q) for p, q in zip(x, y, strict=True))
    )


def coefficient(index: Expr, var: Var) -> int | None:
    """Return the constant by which ``var`` enters a linear index.

    None when it is not linear in it.
    """
    if isinstance(index, Var):
        return 1 if index.same_as(var) else 0
    if isinstance(index, (prim.IntImm, prim.FloatImm)):
        return 0
    if isinstance(index, (prim.Add, prim.Sub)):
        a, b = coefficient(index.a, var), coefficient(index.b, var)
        if a is None or b is None:
            return None
        return a + b if isinstance(index, prim.Add) else a - b
    if isinstance(index, prim.Mul):
        a, b = coefficient(index.a, var), coefficient(index.b, var)
        if a == 0 and b == 0:
            return 0
        if isinstance(index.b, prim.IntImm) and a is not None:
            return a * int(index.b.value)
        if isinstance(index.a, prim.IntImm) and b is not None:
            return b * int(index.a.value)
        return None
    if any(isinstance(n, Var) and n.same_as(var) for n in walk(index)):
        return None
    return 0
