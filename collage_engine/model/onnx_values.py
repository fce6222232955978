"""Inputs and outputs of ONNX models, as the engine holds them and as ONNX runtimes take them.

The engine holds arrays only. To a runtime a text is a Python string (``model.texts``), and a
sequence a list, whose tensors the engine holds by ``NAME[0]``, ``NAME[1]`` and so on
(``model.sequences``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from collage_engine.model.texts import decoded, encoded


def for_onnx(feeds: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, Any]:
    """Return the inputs of a model with these names, as a runtime takes them.

    Args:
        feeds: Arrays by name; those that the model does not take are left out.
        names: The model's inputs. One that is not among the feeds is left out where it has no
            tensors either: it may have a value of its own.
    """
    found: dict[str, Any] = {}
    for name in names:
        if name in feeds:
            found[name] = _plain(feeds[name])
            continue
        elements: list[Any] = []
        while f"{name}[{len(elements)}]" in feeds:
            elements.append(_plain(feeds[f"{name}[{len(elements)}]"]))
        if elements:
            found[name] = elements
    return found


def _plain(value: np.ndarray) -> np.ndarray:
    array = np.asarray(value)
    return decoded(array) if array.dtype.kind == "S" else array


def from_onnx(results: Sequence[Any]) -> list[np.ndarray]:
    """Return what a runtime gave as arrays, the tensors of each sequence in its place."""
    flat: list[Any] = []
    for value in results:
        flat += value if isinstance(value, list) else [value]
    arrays = [np.asarray(value) for value in flat]
    return [encoded(each) if each.dtype.kind in "OU" else each for each in arrays]
