"""Names numpy's types by the names of the records."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.support.errors import UnsupportedError


def numpy_type(name: str) -> np.dtype[Any]:
    """Return numpy's type of an element type, such as ``float32`` or ``bfloat16``.

    Raises:
        UnsupportedError: Neither numpy nor ``ml_dtypes`` has such a type.
    """
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        if not hasattr(ml_dtypes, name):
            raise UnsupportedError(f"numpy has no element type {name}") from None
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype
