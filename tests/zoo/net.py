"""A small builder for ONNX models with random, well-scaled weights (He 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference

Shape = Sequence[int | str]

_ELEMENTS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL,
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "float64": TensorProto.DOUBLE,
}


class Net:
    """Collects nodes; every method returns the name of its (first) output."""

    def __init__(self, name: str, *, opset: int = 17, seed: int = 0, dtype: str = "float32"):
        self.name = name
        self.opset = opset
        self.dtype = dtype
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.weights: list[TensorProto] = []
        self._count: dict[str, int] = {}

    def input(self, name: str, shape: Shape, dtype: str | None = None) -> str:
        element = _ELEMENTS[dtype or self.dtype]
        self.inputs.append(helper.make_tensor_value_info(name, element, list(shape)))
        return name

    def output(self, value: str, dtype: str | None = None, shape: Shape | None = None) -> None:
        element = _ELEMENTS[dtype or self.dtype]
        self.outputs.append(helper.make_tensor_value_info(value, element, shape))

    def fresh(self, hint: str) -> str:
        number = self._count[hint] = self._count.get(hint, 0) + 1
        return f"{hint}_{number}"

    def const(self, values: Any, dtype: Any = None, name: str | None = None) -> str:
        array = np.asarray(values, dtype=dtype)
        name = name or self.fresh("c")
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int, fan_in: int | None = None, gain: float = 2.0) -> str:
        """Uniform with variance gain / fan_in."""
        fan_in = fan_in or int(np.prod(shape[1:]))
        bound = np.float32((3 * gain / fan_in) ** 0.5)
        values = (self.random.random(shape, dtype=np.float32) * 2 - 1) * bound
        return self.const(values.astype(self.dtype), name=self.fresh("w"))

    def vector(self, size: int, mean: float = 0.0, spread: float = 0.1) -> str:
        values = mean + spread * (self.random.random(size, dtype=np.float32) * 2 - 1)
        return self.const(values.astype(self.dtype), name=self.fresh("w"))

    def op(
        self,
        kind: str,
        *inputs: str,
        outputs: int | list[str] = 1,
        name: str | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> Any:
        """Add a node; one name, or a list of them when it has several outputs."""
        name = name or self.fresh(kind.lower())
        if isinstance(outputs, int):
            outputs = [f"{name}:{i}" for i in range(outputs)] if outputs > 1 else [f"{name}:0"]
        node = helper.make_node(kind, list(inputs), outputs, name, domain=domain, **attributes)
        self.nodes.append(node)
        return outputs[0] if len(outputs) == 1 else outputs

    def conv(
        self,
        x: str,
        taken: int,
        given: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        group: int = 1,
        bias: bool = True,
        pad: int | None = None,
        gain: float = 2.0,
        name: str | None = None,
    ) -> str:
        pad = kernel // 2 if pad is None else pad
        inputs = [x, self.weight(given, taken // group, kernel, kernel, gain=gain)]
        if bias:
            inputs.append(self.vector(given))
        return self.op(
            "Conv",
            *inputs,
            name=name,
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
            strides=[stride, stride],
            group=group,
        )

    def batch_norm(self, x: str, channels: int, gain: float = 1.0) -> str:
        return self.op(
            "BatchNormalization",
            x,
            self.vector(channels, gain),
            self.vector(channels),
            self.vector(channels),
            self.vector(channels, 1.0),
        )

    def dense(self, x: str, taken: int, given: int, gain: float = 1.0) -> str:
        """Over the last axis: MatMul and Add."""
        product = self.op("MatMul", x, self.weight(taken, given, fan_in=taken, gain=gain))
        return self.op("Add", product, self.vector(given))

    def layer_norm(self, x: str, width: int) -> str:
        return self.op(
            "LayerNormalization",
            x,
            self.vector(width, 1.0),
            self.vector(width),
            axis=-1,
            epsilon=1e-5,
        )

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.const(shape, np.int64))

    def model(self, *, check: bool = True) -> ModelProto:
        """The model; output shapes come from inference unless ``check`` is off."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=8,
            producer_name="collage-zoo",
        )
        if not check:
            return model
        known = shape_inference.infer_shapes(model, data_prop=True).graph.output
        for output, inferred in zip(model.graph.output, known, strict=True):
            if inferred.type.tensor_type.HasField("shape"):
                output.CopyFrom(inferred)
        return model
