"""Reads and rewrites TIR expressions (TVM's wheel has no Python functor for statements)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tvm import tirx
from tvm.ir import Call, Expr, Op, StringImm, Var
from tvm.ir.expr import TensorLoad
from tvm.ir.prim import expr as prim
from tvm_ffi import structural_equal

BINARY = (prim.BinaryOpExpr, prim.CmpExpr, prim.And, prim.Or)
"""Expressions of two operands, ``a`` and ``b``."""
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


Parts = Sequence[Expr]


def _with_arguments(call: Call, parts: Parts) -> Expr:
    given = iter(parts)
    arguments = [next(given) if isinstance(a, Expr) else a for a in call.args]
    return Call(call.op, arguments, call.attrs, call.ty_args, call.span, call.ty)


def _named_anew(let: prim.Let, parts: Parts) -> Expr:
    """Return a Let over other parts; each copy names its value anew: TVM binds a variable once."""
    var = tirx.Var(let.var.name, let.var.ty)
    return prim.Let(var, parts[0], substitute(parts[1], {let.var: var}))


_FORMS: tuple[
    tuple[tuple[type, ...], Callable[[Any], Parts], Callable[[Any, Parts], Expr]], ...
] = (
    (BINARY, lambda e: (e.a, e.b), lambda e, parts: type(e)(*parts)),
    ((TensorLoad,), lambda e: e.indices, lambda e, parts: tirx.BufferLoad(e.source, parts)),
    ((Call,), lambda e: [a for a in e.args if isinstance(a, Expr)], _with_arguments),
    ((prim.Cast,), lambda e: (e.value,), lambda e, parts: prim.Cast(e.ty, *parts)),
    (
        (prim.Select,),
        lambda e: (e.condition, e.true_value, e.false_value),
        lambda e, parts: prim.Select(*parts),
    ),
    ((prim.Not, prim.BitwiseNot), lambda e: (e.a,), lambda e, parts: type(e)(*parts)),
    ((prim.Let,), lambda e: (e.value, e.body), _named_anew),
    ((Var, prim.IntImm, prim.FloatImm, StringImm), lambda e: (), lambda e, parts: e),
)
"""By the classes of an expression, functions that return its direct sub-expressions, and that
return it with others."""


@cache
def _form_of(kind: type) -> tuple[Callable[[Any], Parts], Callable[[Any, Parts], Expr]]:
    """Look up how to take an expression apart; kept, since TVM's classes are slow to be asked."""
    for kinds, parts, remade in _FORMS:
        if issubclass(kind, kinds):
            return parts, remade
    raise UnsupportedPattern(f"expression {kind.__name__}")


def children(e: Expr) -> tuple[Expr, ...]:
    """Return the direct sub-expressions."""
    kind: type = type(e)
    return tuple(_form_of(kind)[0](e))


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
    kind: type = type(e)
    parts, remade = _form_of(kind)
    return remade(e, [rewrite(part, replace) for part in parts(e)])


def substitute(e: Expr, values: Mapping[Var, Any]) -> Expr:
    """Return the expression with variables replaced; an int becomes a constant of type int64."""

    def replace(node: Expr) -> Expr | None:
        if not isinstance(node, Var) or node not in values:
            return None
        value = values[node]
        return tirx.const(value, "int64") if isinstance(value, int) else value

    return rewrite(e, replace)


def equal(a: Expr, b: Expr) -> bool:
    """Tell whether two expressions are the same, free variables by identity."""
    return a is b or bool(structural_equal(a, b))


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
