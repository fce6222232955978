"""A convolution's weight cut into blocks of output channels."""

from __future__ import annotations

import numpy as np

from collage_engine.kernels.cpu.convolution.problem import ConvProblem


def in_blocks(problem: ConvProblem, weight: np.ndarray, block: int) -> np.ndarray:
    """[O, I, *kernel] as [groups, blocks, block, I of a group, *kernel], missing channels zero."""
    groups, co, ci = problem.groups, problem.co_group, problem.ci_group
    blocks = -(-co // block)
    padded = np.zeros((groups, blocks * block, ci, *problem.kernel), np.float32)
    padded[:, :co] = weight.astype(np.float32).reshape(groups, co, ci, *problem.kernel)
    return padded.reshape(groups, blocks, block, ci, *problem.kernel)
