"""Cuts a convolution's weight into blocks of output channels."""

from __future__ import annotations

import numpy as np

from collage_engine.kernels.cpu.convolution.problem import ConvProblem


def in_blocks(problem: ConvProblem, weight: np.ndarray, block: int) -> np.ndarray:
    """Returns a weight [O, I, *kernel] cut into blocks of output channels.

    Args:
        problem: The convolution.
        weight: Its weight: output channels, input channels of a group, kernel.
        block: Output channels per block.

    Returns:
        A float32 array [groups, blocks, block, input channels of a group, *kernel]; the channels
        that the last block lacks are zero.
    """
    groups, co, ci = problem.groups, problem.co_group, problem.ci_group
    blocks = -(-co // block)
    padded = np.zeros((groups, blocks * block, ci, *problem.kernel), np.float32)
    padded[:, :co] = weight.astype(np.float32).reshape(groups, co, ci, *problem.kernel)
    return padded.reshape(groups, blocks, block, ci, *problem.kernel)
