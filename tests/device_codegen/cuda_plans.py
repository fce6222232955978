"""What the tests of plans for NVIDIA's libraries share: small models, and plans on their values.

No device carries such a plan out here; each test has the steps of its runtime in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import ImportedModel, import_onnx

Ints = tuple[int, ...]


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Random numbers that depend on the shape only, not on what was asked for before."""
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(dtype)


def node(op: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], output, **attributes)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Ints],
    constants: dict[str, np.ndarray],
    shape: Ints,
    kind: int = TensorProto.FLOAT,
) -> ImportedModel:
    """A model of these nodes with the output ``y``."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", kind, shape)],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 9
    return import_onnx(model)


def whole(model: ImportedModel) -> tuple[int, Ints, Ints]:
    """(all nodes, inputs, outputs) of a model's graph."""
    graph = model.graph
    nodes = graph.close(graph.to_indices(tuple(range(len(graph.operators)))))
    return (nodes, *graph.boundary(nodes))


def carried_out(
    model: ImportedModel, execute: Callable[[list[np.ndarray]], object]
) -> tuple[np.ndarray, np.ndarray]:
    """(what ``execute`` writes into the last argument; the model's own)."""
    graph = model.graph
    _, inputs, (output,) = whole(model)
    values = model.random_inputs(0)
    names = dict(zip(graph.record.inputs, (name for name, _ in model.inputs), strict=True))
    kind = graph.nodes[output].type
    result = np.zeros(kind.shape, kind.dtype)
    execute([*(values[names[i]] for i in inputs), result])
    return result, original_outputs(model, values)["y"]
