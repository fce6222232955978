"""The steps of CUTLASS's runtime in numpy, on flat memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tests.device_codegen.cuda_plans import FlatMemory


class Machine(FlatMemory):
    """Carries a plan out; results go into the last arguments."""

    def __init__(self, plan: dict[str, Any], weights: bytes, arguments: list[np.ndarray]) -> None:
        super().__init__(plan, weights, arguments)
        for step in plan["steps"]:
            getattr(self, step["op"])(step)

    def finish(self, y: np.ndarray, s: dict[str, Any], at: int) -> None:
        """Epilogue and store of rows of results, ``at`` elements into the result."""
        y = y.astype(np.float32)
        if "bias" in s:
            y = y + self.flat(s["bias"], s["dtype"])[: y.shape[1]]
        if "c" in s:
            y = y + self.flat(s["c"], s["dtype"])[at : at + y.size].reshape(y.shape)
        if s["epilogue"] == "relu":
            y = np.maximum(y, 0)
        elif s["epilogue"] == "silu":
            y = y / (1 + np.exp(-y))
        self.flat(s["d"], s["dtype"])[at : at + y.size] = y.reshape(-1)

    def operand(self, s: dict[str, Any], name: str) -> np.ndarray:
        """All of an operand."""
        return self.flat(s[name], s["dtype"]).astype(np.float32)

    def conv(self, s: dict[str, Any]) -> None:
        images = (s["images"], s["height"], s["width"], s["channels"])
        filters = (s["filters"], s["kernel_h"], s["kernel_w"], s["channels"])
        x = self.operand(s, "a")[: math.prod(images)].reshape(images)
        w = self.operand(s, "b")[: math.prod(filters)].reshape(filters)
        reach = [(filters[1 + d] - 1) * s[f"dilation_{'hw'[d]}"] + 1 for d in (0, 1)]
        # Behind the image is as much nothing as the result's size asks for.
        behind = []
        for d, c in enumerate("hw"):
            read = (s[f"out_{c}"] - 1) * s[f"stride_{c}"] + reach[d]
            behind.append(max(0, read - images[1 + d] - s[f"pad_{c}"]))
        x = np.pad(x, [(0, 0), (s["pad_h"], behind[0]), (s["pad_w"], behind[1]), (0, 0)])
        windows = sliding_window_view(x, reach, axis=(1, 2))
        windows = windows[:, :: s["stride_h"], :: s["stride_w"]]
        windows = windows[:, : s["out_h"], : s["out_w"]]
        windows = windows[..., :: s["dilation_h"], :: s["dilation_w"]]  # N P Q C R S
        self.finish(np.einsum("npqcrs,krsc->npqk", windows, w).reshape(-1, s["filters"]), s, 0)

    def transpose(self, s: dict[str, Any]) -> None:
        shape = (s["batch"], s["rows"], s["columns"])
        size = math.prod(shape)
        given = self.flat(s["a"], s["dtype"])[:size].reshape(shape)
        self.flat(s["d"], s["dtype"])[:size] = given.transpose(0, 2, 1).reshape(-1)
