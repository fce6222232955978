"""Says how the dataflow graph names opaque operators (``model.opaque``).

Asked by what says which operators a toolchain takes, in processes that load no ONNX.
"""

from __future__ import annotations

PREFIX = "onnx:"
"""The beginning of an opaque operator's name; Relax's own names have no colon of this kind."""


def is_opaque(op: str) -> bool:
    """Return whether a node's operator is an opaque one."""
    return op.startswith(PREFIX)


def title(op: str) -> str:
    """Return an opaque operator's name for sentences: ``LSTM``, ``com.microsoft.Inverse``."""
    return op.removeprefix(PREFIX)
