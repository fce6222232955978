"""Values at the border of a model: their numpy types, texts, and how ONNX runtimes take them.

In NumPy a text is a fixed-width byte string of ``TEXT_BYTES`` bytes (``S256``): UTF-8, filled up
with zeros. Such arrays need no pickle in files, and are compared like numbers. In TVM the bytes
are one more dimension of a tensor of ``uint8``. Inside of a partition texts are ONNX Runtime's.

The engine holds arrays only. To a runtime a text is a Python string, and a sequence a list, whose
tensors the engine holds by ``NAME[0]``, ``NAME[1]`` and so on (``model.sequences``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from collage_engine.machine.loader import run_artifact as loader
from collage_engine.records.graph import TEXT_BYTES
from collage_engine.support.errors import UnsupportedError, UsageError

TEXT_TYPE = np.dtype(f"S{TEXT_BYTES}")
"""The type that an array of texts has in NumPy."""


def encoded(values: Any) -> np.ndarray:
    """Return an array of Python strings (or bytes) as texts.

    Raises:
        UsageError: One is longer than a text can be, or ends with a zero byte.
    """
    try:
        made: np.ndarray = loader.encoded(values)
        return made
    except ValueError as error:
        raise UsageError(str(error)) from error


def decoded(array: np.ndarray) -> np.ndarray:
    """Return texts as an array of Python strings, which ONNX runtimes take."""
    every = [each.decode(errors="replace") for each in array.ravel().tolist()]
    made = np.empty(len(every), dtype=object)
    made[:] = every
    return made.reshape(array.shape)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Return texts as ``uint8`` with one more dimension."""
    data = np.frombuffer(np.ascontiguousarray(array, TEXT_TYPE).tobytes(), np.uint8)
    return data.reshape(*array.shape, TEXT_BYTES)


def from_bytes(array: np.ndarray) -> np.ndarray:
    """Return the texts of ``bytes_of``."""
    data = np.frombuffer(np.ascontiguousarray(array, np.uint8).tobytes(), TEXT_TYPE)
    return data.reshape(array.shape[:-1])


def numpy_type(name: str) -> np.dtype[Any]:
    """Return numpy's type of an element type, such as ``float32``, ``bfloat16`` or ``string``.

    Raises:
        UnsupportedError: Neither numpy nor ``ml_dtypes`` has such a type.
    """
    try:
        dtype: np.dtype[Any] = loader.numpy_dtype(name)
        return dtype
    except AttributeError:
        raise UnsupportedError(f"numpy has no element type {name}") from None


def for_onnx(feeds: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, Any]:
    """Return the inputs of a model with these names, as a runtime takes them.

    Args:
        feeds: Arrays by name; those that the model does not take are left out.
        names: The model's inputs. One that is not among the feeds is left out where it has no
            tensors either: it may have a value of its own.
    """
    by_name: dict[str, Any] = {}
    for name in names:
        if name in feeds:
            by_name[name] = _plain(feeds[name])
            continue
        elements: list[Any] = []
        while f"{name}[{len(elements)}]" in feeds:
            elements.append(_plain(feeds[f"{name}[{len(elements)}]"]))
        if elements:
            by_name[name] = elements
    return by_name


def _plain(value: np.ndarray) -> np.ndarray:
    array = np.asarray(value)
    return decoded(array) if array.dtype.kind == "S" else array


def from_onnx(results: Sequence[Any]) -> list[np.ndarray]:
    """Return what a runtime gave as arrays, the tensors of each sequence in its place."""
    flat: list[Any] = []
    for value in results:
        flat += value if isinstance(value, list) else [value]
    arrays = [np.asarray(value) for value in flat]
    return [encoded(array) if array.dtype.kind in "OU" else array for array in arrays]
