"""Writes loop nests directly as TIR statements.

The schedules do not transform a loop nest, they write one: ``loop`` and friends take a Python
function of the loop variable, so a schedule reads like the kernel it emits. All loop variables
and indices are int64, as Relax's shapes are; TVM narrows them when it lowers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.stmt import For, ForKind

Index: TypeAlias = int | Expr
"""The type of an index: an int64 expression or a Python int."""
Stmt: TypeAlias = Any
"""The type of a TIR statement."""
Body: TypeAlias = Callable[..., Stmt]


def loop(extent: int, body: Body, kind: ForKind = ForKind.SERIAL, name: str = "i") -> Stmt:
    """Return a loop from 0; an extent of 1 leaves no loop (the variable is the number 0).

    Args:
        extent: How often the body is done.
        body: A function from the loop's variable to the statement.
        kind: What TVM makes of the loop: serial, parallel, unrolled or vectorized.
        name: The variable's name.
    """
    if extent == 1:
        return body(0)
    var = tirx.Var(name, "int64")
    return For(var, int64(0), int64(extent), kind, body(var))


def for_range(extent: Any, body: Body, name: str = "i") -> Stmt:
    """Return a serial loop whose extent may be an expression."""
    value = constant_value(extent)
    if value is not None:
        return loop(value, body, name=name) if value else seq()
    var = tirx.Var(name, "int64")
    return For(var, int64(0), extent, ForKind.SERIAL, body(var))


def parallel(extent: int, body: Body, name: str = "task") -> Stmt:
    """Return a loop whose iterations the runtime's threads share."""
    return loop(extent, body, ForKind.PARALLEL, name)


def unrolled(extent: int, body: Body, name: str = "u") -> Stmt:
    """Return a loop that the code generator writes out."""
    return loop(extent, body, ForKind.UNROLLED, name)


def vectorized(extent: int, body: Body, name: str = "lane") -> Stmt:
    """Return a loop whose iterations are the lanes of vectors."""
    return loop(extent, body, ForKind.VECTORIZED, name)


def nest(extents: Sequence[int], body: Callable[..., Stmt], kind: ForKind = ForKind.SERIAL) -> Stmt:
    """Return nested loops over a box, the last extent innermost.

    Args:
        extents: The extent of each loop; an extent of 1 leaves no loop.
        body: A function that returns the innermost statement, given one index for each extent.
        kind: What TVM makes of the loops.
    """

    def level(depth: int, variables: tuple[Any, ...]) -> Stmt:
        if depth == len(extents):
            return body(*variables)
        return loop(extents[depth], lambda v: level(depth + 1, (*variables, v)), kind, f"i{depth}")

    return level(0, ())


def seq(*statements: Stmt | None) -> Stmt:
    """Return statements one after another; None and empty sequences are dropped."""
    flat: list[Stmt] = []
    for s in statements:
        if isinstance(s, tirx.SeqStmt):
            flat.extend(s.seq)
        elif s is not None:
            flat.append(s)
    if not flat:
        return tirx.Evaluate(tirx.const(0, "int32"))
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def bound(value: Index, body: Body) -> Stmt:
    """Return the body with an index computed once and named."""
    if constant_value(value) is not None:
        return body(value)
    var = tirx.Var("at", "int64")
    return seq(tirx.Bind(var, int64(value)), body(var))


def when(condition: Any, then: Stmt, otherwise: Stmt | None = None) -> Stmt | None:
    """Return a branch; a condition known now leaves no branch."""
    value = constant_value(condition)
    if value is not None:
        return then if value else otherwise
    return tirx.IfThenElse(condition, then, otherwise)


def by_blocks(
    block: Index, blocks: int, whole: Any, last: Any, body: Callable[[Any], Stmt]
) -> Stmt:
    """Return the body of a block, whose content differs in the last one.

    Args:
        block: The number of the block.
        blocks: How many there are.
        whole: The content of a block.
        last: That of the last one, as far as it exists.
        body: A function from a content to the statement.
    """
    if whole == last:
        return body(whole)
    rest = body(last)
    return rest if blocks == 1 else tirx.IfThenElse(block < blocks - 1, body(whole), rest)


def store(buffer: Any, value: Any, *indices: Index) -> Stmt:
    """Store a value at an element of a buffer."""
    return tirx.BufferStore(buffer, value, [int64(i) for i in indices])


def load(buffer: Any, *indices: Index) -> Expr:
    """Read an element of a buffer."""
    return tirx.BufferLoad(buffer, [int64(i) for i in indices])


def local(shape: Sequence[int], dtype: str = "float32", name: str = "acc") -> Any:
    """Return a small buffer meant for registers (allocated where ``allocate`` puts it)."""
    return tirx.decl_buffer([int64(e) for e in shape], dtype, name, scope="local", layout=None)


def workspace(shape: Sequence[int], dtype: str = "float32", name: str = "tmp") -> Any:
    """Return a buffer in memory; from TVM's per-thread workspace pool unless it is tiny."""
    return tirx.decl_buffer([int64(e) for e in shape], dtype, name, layout=None)


def allocate(buffer: Any) -> Stmt:
    """Declare the buffer for the statements that follow in the same sequence."""
    return tirx.AllocBuffer(buffer)


def prefetch(buffer: Any, *indices: Index) -> Stmt:
    """Asks for the cache line of an element, which need not exist."""
    return tirx.Evaluate(
        tirx.call_llvm_intrin(
            "void",
            "llvm.prefetch",
            tirx.address_of(load(buffer, *indices)),
            tirx.const(0, "int32"),
            tirx.const(3, "int32"),
            tirx.const(1, "int32"),
        )  # read, keep in all levels, data
    )


def int64(value: Index) -> Expr:
    """Return an index as an expression."""
    return tirx.IntImm("int64", value) if isinstance(value, int) else value


def f32(value: float) -> Expr:
    """Return a float32 constant."""
    return tirx.FloatImm("float32", float(value))


def constant_value(value: Any) -> int | None:
    """Return the number an index or condition is, when it is known now."""
    if isinstance(value, (bool, int)):
        return int(value)
    return int(value.value) if isinstance(value, tirx.IntImm) else None


def split_index(index: Index, extents: Sequence[int]) -> tuple[Any, ...]:
    """Return one index over a box as one per extent, the last fastest."""
    parts: list[Any] = []
    rest: Any = index
    for position, extent in enumerate(reversed(extents)):
        if position == len(extents) - 1:
            parts.append(rest)
        elif extent == 1:
            parts.append(0)
        else:
            parts.append(rest % extent)
            rest = rest // extent
    return tuple(reversed(parts))


def flat_index(indices: Sequence[Index], extents: Sequence[int], start: Index = 0) -> Any:
    """Return the index over a box of one index per extent, the last fastest.

    Args:
        indices: An index along every axis.
        extents: The extent of each axis.
        start: The index along an axis in front.
    """
    index: Any = start
    for each, extent in zip(indices, extents, strict=True):
        index = index * extent + each
    return index


def all_of(conditions: Sequence[Any]) -> Any:
    """Return their conjunction with what is known now left out: True, False or an expression."""
    unknown = []
    for condition in conditions:
        value = constant_value(condition)
        if value is None:
            unknown.append(condition)
        elif not value:
            return False
    if not unknown:
        return True
    result = unknown[0]
    for condition in unknown[1:]:
        result = tirx.And(result, condition)
    return result


def divisor(n: int, limit: int) -> int:
    """Return the largest divisor of ``n`` that is at most ``limit``."""
    return next(d for d in range(min(n, limit), 0, -1) if n % d == 0)


def in_vectors(size: int, lanes: int, vector: Callable[[Index, int], Stmt]) -> Stmt:
    """Return ``vector(start, width)`` over a run of elements: whole ones, then powers of two."""
    full = size // lanes
    rest = pieces(size - full * lanes, lanes)
    return seq(
        loop(full, lambda v: vector(v * lanes, lanes)) if full else None,
        *(vector(full * lanes + start, width) for start, width in rest),
    )


def pieces(extent: int, width: int) -> list[tuple[int, int]]:
    """Return (start, size) of vectors that cover ``extent``: full ones, then powers of two."""
    result = []
    start = 0
    size = width
    while start < extent:
        while size > extent - start:
            size //= 2
        result.append((start, size))
        start += size
    return result
