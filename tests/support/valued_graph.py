"""Builds dataflow graphs from records, whose constants have values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.graphs import GraphBuilder

Shape = tuple[int, ...]


class ValuedGraph(GraphBuilder):
    """Operators with their types given.

    Attributes:
        arrays: The constants' values by handle.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[int, np.ndarray] = {}

    def input(self, *shape: int, dtype: str = "float32") -> int:
        return self.parameter(f"x{len(self.others)}", shape, dtype)

    def const(self, values: Any, dtype: str = "float32") -> int:
        array = np.asarray(values, dtype)
        handle = self.constant(array.shape, dtype=dtype)
        self.arrays[handle] = array
        return handle

    def add_call(self, op: str, extents: Shape, *inputs: int, **fields: Any) -> int:
        return self.call(op, *inputs, shape=extents, **fields)

    def conv2d(self, x: int, w: int, extents: Shape, **attributes: Any) -> int:
        """Add a convolution of images with channels first, without padding unless it is given."""
        chosen = {
            "strides": [1, 1],
            "padding": [0, 0, 0, 0],
            "dilation": [1, 1],
            "groups": 1,
            "data_layout": "NCHW",
            "kernel_layout": "OIHW",
            "out_layout": "",
        }
        return self.add_call("nn.conv2d", extents, x, w, **{**chosen, **attributes})

    def array(self, index: int) -> np.ndarray:
        """Returns the values of a constant of the built graph."""
        return next(array for handle, array in self.arrays.items() if self.index(handle) == index)
