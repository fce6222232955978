"""What the tests of plans for NVIDIA's libraries share: small models, and plans on their values.

No device carries such a plan out here; each test has the steps of its runtime in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.toolchains.runtime.places import Places
from collage_engine.toolchains.runtime.products import Dialect
from tests.support.written import written

Ints = tuple[int, ...]

EXPORTED = ZipFile(Path(__file__).parents[1] / "data" / "attention.zip")
"""One layer of BERT, GPT-2, Qwen2 and ViT in float16, as transformers 4 and 5 write it, exported
by PyTorch 2.13's two exporters (``dynamo=True`` and False, the latter from float32)."""


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Random numbers that depend on the shape only, not on what was asked for before."""
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(dtype)


def model_of(inputs: str, nodes: str, **weights: Ints | np.ndarray) -> ImportedModel:
    """Return the model of some nodes whose output is ``y``, as ONNX's text writes them.

    Args:
        inputs: ``float[4,8] x``.
        nodes: ``p = MatMul(x, w) y = Relu(p)``.
        weights: Arrays by name; for a shape it is ``normal(*shape)``.
    """
    arrays = {n: normal(*w) if isinstance(w, tuple) else w for n, w in weights.items()}
    return import_onnx(written(f"({inputs}) => (y) {{ {nodes} }}", arrays, opset=20))


def plan_of(dialect: Dialect, model: ImportedModel) -> tuple[dict[str, Any], bytes]:
    """Return a library's plan for a whole model, and its weights."""
    graph = model.graph
    inputs, outputs = graph.boundary(graph.everything)
    return dialect.plan_of(Places(graph, inputs, outputs, model.constant), graph.everything)


def carried_out(
    dialect: Dialect,
    execute: Callable[[dict[str, Any], bytes, list[np.ndarray]], object],
    model: ImportedModel,
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """(a library's plan, what ``execute`` writes into the last argument, the model's own)."""
    graph = model.graph
    inputs, outputs = graph.boundary(graph.everything)
    plan, weights = plan_of(dialect, model)
    values = model.random_inputs(0)
    names = dict(zip(graph.record.inputs, (name for name, _ in model.inputs), strict=True))
    kind = graph.values[outputs[0]].type
    result = np.zeros(kind.shape, kind.dtype)
    execute(plan, weights, [*(values[names[i]] for i in inputs), result])
    return plan, result, original_outputs(model, values)["y"]


class FlatMemory:
    """What a plan works on, in numpy: weights, scratch memory and the arguments of the call."""

    def __init__(self, plan: dict[str, Any], weights: bytes, arguments: list[np.ndarray]) -> None:
        self.memory = {
            "weight": np.frombuffer(weights + bytes(8), np.uint8),
            # What nothing has written yet must not look like a result.
            "scratch": np.full(plan["scratch_bytes"] + 8, 0xFF, np.uint8),
        }
        self.arguments = arguments

    def flat(self, place: dict[str, Any], dtype: str) -> np.ndarray:
        """Return the elements from a place on."""
        if place["where"] == "argument":
            return self.arguments[place["at"]].reshape(-1)
        raw = self.memory[place["where"]][place["at"] :]
        size = np.dtype(dtype).itemsize
        return raw[: len(raw) // size * size].view(dtype)


def convolved(x: np.ndarray, w: np.ndarray, **attributes: Any) -> np.ndarray:
    """ONNX's Conv of images, channels first."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    (result,) = ReferenceEvaluator(node).run(None, {"x": x, "w": w})  # type: ignore[misc]
    return np.asarray(result)
