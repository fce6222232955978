"""Rounds weights to bfloat16 so that their errors cancel within every output channel.

A product's result is off by the sum of (weight error × activation). Behind a ReLU all activations
are positive and much alike, so that the errors' plain sum decides, and rounding each weight to
the nearest leaves a sum that grows as the root of their number. Here the few weights that lie
nearest to the middle between two bfloat16 numbers go to the other one, until the sum is as good
as nothing: single errors grow by next to nothing. It needs no data and costs no time when run.
The idea is that of error diffusion (Floyd and Steinberg 1976), for sums in place of pictures.
"""

from __future__ import annotations

import numpy as np


def balanced(weights: np.ndarray) -> np.ndarray:
    """Round float32 ``[rows, summands]`` to bfloat16 numbers (in float32).

    Their errors sum to about 0 in every row.
    """
    rows, count = weights.shape
    bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
    below = bits & np.uint32(0xFFFF0000)  # towards zero
    toward, away = below.view(np.float32), (below + np.uint32(0x10000)).view(np.float32)
    # A tie or a number that is in bfloat16 already stays; so does what would become infinite.
    up = ((bits & np.uint32(0xFFFF)) > 0x8000) & np.isfinite(away)
    near, other = np.where(up, away, toward), np.where(up, toward, away)
    error = near - weights
    total = error.sum(axis=1, dtype=np.float64, keepdims=True)
    # This says how near to the middle the numbers are whose change makes the sum smaller.
    doubt = np.abs(error) / np.maximum(np.abs(other - near), np.float32(1e-38))
    doubt[(error * np.sign(total) <= 0) | ~np.isfinite(other)] = -1
    # The sum is about a third of the root of their number, in steps; some more to be safe.
    few = min(count, 8 + 2 * int(count**0.5))
    chosen = np.argpartition(-doubt, few - 1, axis=1)[:, :few]
    order = np.argsort(-np.take_along_axis(doubt, chosen, 1), axis=1)
    chosen = np.take_along_axis(chosen, order, 1)
    steps = np.abs(np.take_along_axis(other - near, chosen, 1)).astype(np.float64)
    steps[np.take_along_axis(doubt, chosen, 1) < 0] = np.inf  # never taken
    after = np.abs(np.abs(total) - np.cumsum(steps, axis=1))
    left = np.concatenate([np.abs(total), after], axis=1)
    changed = np.arange(few)[None] < left.argmin(axis=1)[:, None]
    row = np.broadcast_to(np.arange(rows)[:, None], chosen.shape)[changed]
    near[row, chosen[changed]] = other[row, chosen[changed]]
    return near
