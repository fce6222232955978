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
from collage_engine.records.format import NHWC

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
    gives: int | None = None,
) -> ImportedModel:
    """A model of these nodes with the output ``y``; ``gives``: its type, if another one."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", kind if gives is None else gives, shape)],
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


def stored_formats(model: ImportedModel, nhwc: bool) -> dict[int, str]:
    """Every image that crosses the border with its channels innermost, or none."""
    _, inputs, outputs = whole(model)
    images = (i for i in (*inputs, *outputs) if len(model.graph.nodes[i].type.shape) == 4)
    return dict.fromkeys(images, NHWC) if nhwc else {}


def carried_out(
    model: ImportedModel, formats: dict[int, str], execute: Callable[[list[np.ndarray]], object]
) -> tuple[np.ndarray, np.ndarray]:
    """(what ``execute`` writes into the last argument, in logical order; the model's own)."""
    graph = model.graph
    _, inputs, (output,) = whole(model)
    values = model.random_inputs(0)
    names = dict(zip(graph.record.inputs, (name for name, _ in model.inputs), strict=True))

    def stored(index: int, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1) if index in formats else array)

    kind = graph.nodes[output].type
    result = stored(output, np.zeros(kind.shape, kind.dtype))
    execute([*(stored(i, values[names[i]]) for i in inputs), result])
    if output in formats:
        result = result.transpose(0, 3, 1, 2)
    return result, original_outputs(model, values)["y"]


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, mask: np.ndarray | None
) -> np.ndarray:
    """softmax(scale · q kᵀ + mask) · v over the last two axes, in float32."""
    scores = scale * (q.astype(np.float32) @ np.swapaxes(k.astype(np.float32), -1, -2))
    if mask is not None:
        scores = scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v.astype(np.float32)


def attention_model(
    mask: str = "",
    *,
    batch: int = 1,
    heads_outside: bool = True,
    dtype: str = "float32",
    divide: bool = False,
    fill: float = -1e4,
) -> ImportedModel:
    """Attention of 2 heads of 8 elements over 16 positions, as exporters write it out.

    ``mask``: empty, added (one row for all queries) or selected (a triangle stays, the rest becomes
    ``fill``). With
    ``heads_outside`` operands come as [batch, positions, heads, size] and are moved; the result
    moves back.
    """
    shape = (batch, 16, 2, 8) if heads_outside else (batch, 2, 16, 8)
    kind = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.FLOAT
    inputs: dict[str, Ints] = {"q": shape, "k": shape, "v": shape}
    constants = {"c": np.array(8**0.5 if divide else 8**-0.5, dtype)}
    q, v, k_order = ("qt", "vt", [0, 2, 3, 1]) if heads_outside else ("q", "v", [0, 1, 3, 2])
    nodes = [
        node("Transpose", ["k"], "kt", perm=k_order),
        node("MatMul", [q, "kt"], "s"),
        node("Div" if divide else "Mul", ["s", "c"], "u"),
    ]
    last = "u"
    if mask == "added":
        inputs["m"] = (batch, 1, 1, 16)
        nodes.append(node("Add", ["u", "m"], "z"))
        last = "z"
    elif mask == "selected":
        constants["t"] = np.tril(np.ones((1, 1, 16, 16), bool))
        constants["f"] = np.array(fill, dtype)
        nodes.append(node("Where", ["t", "u", "f"], "z"))
        last = "z"
    result = "o" if heads_outside else "y"
    nodes += [node("Softmax", [last], "w", axis=-1), node("MatMul", ["w", v], result)]
    if heads_outside:
        moved = [node("Transpose", [n], f"{n}t", perm=[0, 2, 1, 3]) for n in "qv"]
        nodes = [*moved, *nodes, node("Transpose", ["o"], "y", perm=[0, 2, 1, 3])]
    return model_of(nodes, inputs, constants, shape, kind)


KINDS: dict[int, Any] = {TensorProto.INT8: np.int8, TensorProto.UINT8: np.uint8}


def scalar(value: float, kind: Any = np.float32) -> np.ndarray:
    return np.array(value, kind)


def small(*shape: int) -> np.ndarray:
    """Weights of 8 bits."""
    return np.clip(np.rint(normal(*shape) * 40), -127, 127).astype(np.int8)


def quantized_conv(
    kind: int,
    zero: int,
    *,
    pad: int = 1,
    residual: bool = False,
    kernel: int = 3,
    quantize: bool = True,
    relu: bool = True,
) -> ImportedModel:
    """Conv, bias, ReLU between DequantizeLinear and QuantizeLinear, scales per channel."""
    dtype = KINDS[kind]
    nodes = [
        node("DequantizeLinear", ["x", "sx", "zx"], "xf"),
        node("DequantizeLinear", ["w", "sw", "zw"], "wf", axis=0),
        node("Conv", ["xf", "wf", "b"], "c", pads=[pad] * 4),
    ]
    size = 6 + 2 * pad - kernel + 1
    inputs: dict[str, tuple[int, ...]] = {"x": (2, 16, 6, 6)}
    last = "c"
    if residual:
        inputs["r"] = (2, 16, size, size)
        nodes += [node("DequantizeLinear", ["r", "sr", "zx"], "rf"), node("Add", ["c", "rf"], "s")]
        last = "s"
    if relu:
        nodes.append(node("Relu", [last], "a"))
        last = "a"
    if quantize:
        nodes.append(node("QuantizeLinear", [last, "sy", "zy"], "y"))
    else:
        nodes[-1].output[0] = "y"
    constants = {
        "w": small(16, 16, kernel, kernel),
        "b": normal(16),
        "sx": scalar(0.05),
        "zx": scalar(zero, dtype),
        "sw": np.linspace(0.002, 0.004, 16, dtype=np.float32),
        "zw": np.zeros(16, np.int8),
        "sr": scalar(0.07),
        "sy": scalar(0.09),
        "zy": scalar(3, dtype),
    }
    used = {i for n in nodes for i in n.input}
    constants = {n: v for n, v in constants.items() if n in used}
    shape = (2, 16, size, size)
    return model_of(nodes, inputs, constants, shape, kind, None if quantize else TensorProto.FLOAT)
