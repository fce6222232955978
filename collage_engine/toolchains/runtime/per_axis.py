"""Attributes that hold a number for each axis of space, and the strides of dense tensors."""

from __future__ import annotations

from collections.abc import Sequence

Ints = tuple[int, ...]


def per_axis(value: int | Sequence[int], rank: int) -> Ints:
    """Return an attribute as one number per axis; a single number holds for every axis."""
    found = tuple(map(int, value)) if isinstance(value, Sequence) else (int(value),)
    return found * rank if len(found) == 1 else found


def pads(value: int | Sequence[int], rank: int) -> tuple[Ints, Ints]:
    """Return the padding before and behind each axis, from Relax's 1, rank or 2 · rank numbers."""
    found = per_axis(value, rank)
    return (found, found) if len(found) == rank else (found[:rank], found[rank:])


def row_major(dims: Sequence[int]) -> Ints:
    """Return the strides, in elements, of a dense tensor whose last axis is innermost."""
    strides, step = [], 1
    for extent in reversed(dims):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
