"""Models for tests and benchmarks: made on the spot, deterministic, no downloads.

    python -m tests.zoo NAME OUT.onnx      writes one
    python -m tests.zoo                    lists them
"""
from __future__ import annotations

import collections
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

_LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def light(name: str, seed: int = 0) -> ModelProto:
    """One of onnx's nine ``light_*`` models with its ConstantOfShape weights filled in.

    ``name`` without ``light_`` and ``.onnx``, e.g. ``resnet50``. Weights are He-scaled and
    damped so that activations stay tame and the softmax is not saturated.
    """
    model = onnx.load(str(_LIGHT / f"light_{name}.onnx"))
    graph = model.graph
    random = np.random.default_rng(seed)
    initializers = {i.name: i for i in graph.initializer}
    uses: dict[str, list[tuple[onnx.NodeProto, int]]] = collections.defaultdict(list)
    for node in graph.node:
        for place, value in enumerate(node.input):
            uses[value].append((node, place))

    def role(value: str) -> tuple[str, int]:
        for node, place in uses[value]:
            return role(node.output[0]) if node.op_type == "Unsqueeze" else (node.op_type, place)
        return "", 0

    filled = []
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in initializers:
            kept.append(node)
            continue
        shape = tuple(int(d) for d in numpy_helper.to_array(initializers[node.input[0]]))
        values = random.standard_normal(shape, dtype=np.float32)
        match role(node.output[0]):
            case (("Conv" | "Gemm"), 1):
                values *= np.float32(0.6 * (2 / np.prod(shape[1:])) ** 0.5)
            case ("BatchNormalization", 1) | ("Mul", _):
                values = 1 + np.float32(0.1) * values
            case ("BatchNormalization", 4):
                values = np.abs(1 + np.float32(0.1) * values)
            case _:
                values *= np.float32(0.1)
        filled.append(numpy_helper.from_array(values, node.output[0]))
    used = {value for node in kept for value in node.input}
    old = [i for i in graph.initializer if i.name in used]
    names = {i.name for i in [*old, *filled]}
    inputs = [i for i in graph.input if i.name in used and i.name not in names]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(kept)
    graph.initializer.extend([*old, *filled])
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 8)
    return model
