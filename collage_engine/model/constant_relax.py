"""Computes with numpy what a Relax call on constants gives, and finds calls that do nothing.

TVM's FoldConstant compiles every distinct constant expression (10 to 40 s on a network with
many normalisations); converters leave only a handful of forms, which numpy does at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collage_engine.records.graph import TensorType

Attributes = dict[str, Any]


def _squeeze(v: list[np.ndarray], a: Attributes) -> np.ndarray:
    axis = a.get("axis")
    return np.squeeze(v[0], None if axis is None else tuple(axis))


_FOLDS: dict[str, Callable[[list[np.ndarray], Attributes], np.ndarray]] = {
    "reshape": lambda v, a: v[0].reshape(a["shape"]),
    "permute_dims": lambda v, a: np.ascontiguousarray(np.transpose(v[0], a.get("axes"))),
    "expand_dims": lambda v, a: np.expand_dims(v[0], tuple(a["axis"])),
    "squeeze": _squeeze,
    "broadcast_to": lambda v, a: np.ascontiguousarray(np.broadcast_to(v[0], a["shape"])),
    "add": lambda v, a: v[0] + v[1],
    "subtract": lambda v, a: v[0] - v[1],
    "multiply": lambda v, a: v[0] * v[1],
    "negative": lambda v, a: -v[0],
}


def fold(op: str, attributes: Attributes, values: list[np.ndarray]) -> np.ndarray | None:
    """Return an operator's result on constants; None when it is not one of the folded forms."""
    if op == "astype":
        try:
            return values[0].astype(np.dtype(attributes["dtype"]))
        except TypeError:
            return None  # numpy lacks the type (bfloat16 and the like)
    compute = _FOLDS.get(op)
    return None if compute is None else compute(values, attributes)


def does_nothing(op: str, attributes: Attributes, taken: TensorType, given: TensorType) -> bool:
    """Tells whether a call hands its first argument on, whose type is ``taken``."""
    if taken != given:
        return False
    match op:
        case "reshape" | "broadcast_to" | "squeeze" | "expand_dims" | "astype":
            return True
        case "permute_dims":
            axes = attributes.get("axes")
            rank = len(given.shape)
            return [x % rank for x in axes] == list(range(rank)) if axes else rank <= 1
        case "strided_slice":
            return all(s == 1 for s in attributes.get("strides") or [1])
    return False
