"""Packs the weights of narrow numbers by steps of several channels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np


def in_steps(
    weights: np.ndarray, groups: int, block: int, together: int, kernel: Sequence[int]
) -> np.ndarray:
    """Returns a weight in the order in which dot instructions read it.

    Args:
        weights: [O, I of a group, *kernel].
        groups: Groups of channels.
        block: Output channels of a block.
        together: Input channels of a step.
        kernel: Axes of taps in the result.

    Returns:
        [groups, blocks, *kernel, steps, block, channels of a step], zeros behind.
    """
    co, ci, taps = weights.shape[0] // groups, weights.shape[1], prod(weights.shape[2:])
    blocks, steps = -(-co // block), -(-ci // together)
    wide = np.zeros((groups, blocks * block, steps * together, taps), weights.dtype)
    wide[:, :co, :ci] = weights.reshape(groups, co, ci, taps)
    split = wide.reshape(groups, blocks, block, steps, together, taps)
    return np.ascontiguousarray(split.transpose(0, 1, 5, 3, 2, 4)).reshape(
        groups, blocks, *kernel, steps, block, together
    )
