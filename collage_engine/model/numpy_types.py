"""Gives the numpy type of each element type that a record names."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.model.texts import TEXT_TYPE
from collage_engine.support.errors import UnsupportedError


def numpy_type(name: str) -> np.dtype[Any]:
    """Return numpy's type of an element type, such as ``float32``, ``bfloat16`` or ``string``.

    Raises:
        UnsupportedError: Neither numpy nor ``ml_dtypes`` has such a type.
    """
    if name == "string":
        return TEXT_TYPE
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        if not hasattr(ml_dtypes, name):
            raise UnsupportedError(f"numpy has no element type {name}") from None
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
