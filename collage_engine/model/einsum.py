"""Recognises an einsum of two tensors as a batched matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class MatmulPlan:
    """The steps by which a product computes an einsum: permute, reshape, multiply, and back."""

    left: list[int]
    left_shape: list[int]
    """Shape of the left operand of the product: [batch, rows, inner]."""
    right: list[int]
    right_shape: list[int]
    """Shape of the right operand of the product: [batch, inner, columns]."""
    shape: list[int]
    """Shape of the product before its last permutation, with batch, rows and columns spread out."""
    order: list[int]


def matmul_plan(equation: str, shapes: list[tuple[int, ...]]) -> MatmulPlan | None:
    """Return the plan for an equation such as ``bhqd,bhkd->bhqk``.

    None when it is no product of two tensors: other operand counts, an ellipsis, a letter
    repeated within one side, an implicit output, a letter summed over one side only, or
    extents that broadcast.
    """
    if equation.count(",") != 1 or "->" not in equation or "." in equation:
        return None
    operands, out = equation.split("->")
    a, b = operands.split(",")
    if any(len(set(side)) != len(side) for side in (a, b, out)):
        return None
    if len(a) != len(shapes[0]) or len(b) != len(shapes[1]):
        return None
    size = dict(zip(a, shapes[0], strict=True))
    if any(
        size.setdefault(letter, extent) != extent
        for letter, extent in zip(b, shapes[1], strict=True)
    ):
        return None
    batch = [x for x in out if x in a and x in b]
    rows = [x for x in out if x in a and x not in b]
    columns = [x for x in out if x in b and x not in a]
    inner = [x for x in a if x in b and x not in out]
    if len(batch) + len(rows) + len(inner) != len(a) or not inner:
        return None
    if len(batch) + len(columns) + len(inner) != len(b):
        return None

    def extent(letters: list[str]) -> int:
        return prod(size[x] for x in letters)

    made = [*batch, *rows, *columns]
    return MatmulPlan(
        left=[a.index(x) for x in (*batch, *rows, *inner)],
        left_shape=[extent(batch), extent(rows), extent(inner)],
        right=[b.index(x) for x in (*batch, *inner, *columns)],
        right_shape=[extent(batch), extent(inner), extent(columns)],
        shape=[size[x] for x in made],
        order=[made.index(x) for x in out],
    )
