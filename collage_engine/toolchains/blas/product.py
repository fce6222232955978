"""Computes matrix products that are read and written in place through transposes."""

from __future__ import annotations

from typing import Any

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.toolchains.blas.program import BlasProgram, Ints, Step, View


def check(node: Node, operands: list[Node]) -> None:
    """Checks that a product is one that a BLAS can compute.

    Raises:
        UnsupportedError: A tensor is empty.
    """
    if any(0 in n.type.shape for n in (node, *operands)):
        raise UnsupportedError("MatMul: a BLAS multiplies no empty tensors")


def product(program: BlasProgram, left: View, right: View) -> tuple[View, Step]:
    """Appends the step of ``left · right`` by NumPy's rules; its axes are batch, row and column.

    Returns:
        The result and the step.
    """
    if len(left.dims) == 1:
        left = View(left.buffer, left.offset, (1, *left.dims), (0, *left.strides))
    if len(right.dims) == 1:
        right = View(right.buffer, right.offset, (*right.dims, 1), (*right.strides, 1))
    left, right = (_readable(program, v) for v in (left, right))
    rank = max(len(left.dims), len(right.dims))
    batch = tuple(
        max(a, b)
        for a, b in zip(
            (1,) * (rank - len(left.dims)) + left.dims[:-2],
            (1,) * (rank - len(right.dims)) + right.dims[:-2],
            strict=True,
        )
    )
    dims = (*batch, left.dims[-2], right.dims[-1])
    return program.emit("product", dims, [left, right], _describe)


def _readable(program: BlasProgram, view: View) -> View:
    """Returns the view where a BLAS can read it, else a copy.

    One of its last two axes has to be dense, and the other has to step over it.
    """
    return view if _leading(view) is not None else program.copy(view)[0]


def _leading(view: View) -> tuple[int, bool] | None:
    """Returns the leading dimension, and whether columns are dense in memory.

    The result is None where neither is.
    """
    rows, columns = view.dims[-2:]
    down, along = view.strides[-2:]
    if (along == 1 or columns == 1) and (rows == 1 or down >= columns):
        return (max(down, columns) if rows > 1 else columns), False
    if (down == 1 or rows == 1) and (columns == 1 or along >= rows):
        return (max(along, rows) if columns > 1 else rows), True
    return None


def _describe(step: Step) -> dict[str, Any]:
    """Returns the JSON values of a product.

    Batch axes that are just more rows are folded into it.
    """
    left, right = step.reads
    batch = step.dims[:-2]
    rows, columns, depth = step.dims[-2], step.dims[-1], left.dims[-1]
    lead_a, lead_b = _leading(left), _leading(right)
    assert lead_a is not None and lead_b is not None
    a, b = (v.broadcast((*batch, *v.dims[-2:])) for v in (left, right))
    c = step.strides
    posts = [p.strides for p in step.posts]
    row = len(batch)
    row_a = lead_a[0]
    row_c = c[row] if rows > 1 else columns
    row_posts = [p[row] if p else 0 for p in posts]
    count = row
    while count:
        axis = count - 1
        if batch[axis] != 1:
            if b[axis] or lead_a[1]:
                break
            if rows == 1:
                if a[axis] < depth or c[axis] < columns:
                    break
                row_a, row_c = a[axis], c[axis]
                row_posts = [p[axis] if p else 0 for p in posts]
            elif not (
                a[axis] == rows * row_a
                and c[axis] == rows * row_c
                and all(
                    not p or p[axis] == rows * own for p, own in zip(posts, row_posts, strict=True)
                )
            ):
                break
            rows *= batch[axis]
        count -= 1

    def operand(place: dict[str, int], strides: Ints, lead: int, transposed: bool) -> Any:
        own = {"batch": list(strides[:count]), "ld": lead, "transposed": int(transposed)}
        return place | own

    return {
        "batch": list(batch[:count]),
        "m": rows,
        "n": columns,
        "k": depth,
        "a": operand(left.place(), a, row_a, lead_a[1]),
        "b": operand(right.place(), b, *lead_b),
        "c": operand(step.out.place(), c, max(row_c, columns), False),
        "post": [
            p.as_json([*strides[:count], own, strides[row + 1]] if strides else [])
            for p, strides, own in zip(step.posts, posts, row_posts, strict=True)
        ],
    }
