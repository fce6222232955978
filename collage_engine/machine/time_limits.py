"""Limits how long a step may take that reads all weights of a model, to end what hangs."""

from __future__ import annotations

WEIGHTS_BYTES_PER_S = 10e6
"""Bytes of weights a second that a step gets through at the least; chosen: a tenth of what a hard
disk reads, since a runtime reads, packs and hands on the weights several times, on a busy machine
too."""


def with_weights(limit_s: float, weights_bytes: int, copies: int = 1) -> float:
    """Return the seconds after which a step that reads a model's weights counts as hanging.

    Args:
        limit_s: Seconds for the same step with a model that has hardly any weights.
        weights_bytes: Size of the model's weights.
        copies: How many times the step reads them, as several instances do.
    """
    return limit_s + copies * weights_bytes / WEIGHTS_BYTES_PER_S
