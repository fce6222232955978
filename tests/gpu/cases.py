"""Operators with the shapes of ResNet-50, ResNeXt-50, BERT-base and GPT-2, as ONNX, with float64
references.

A case is a small ONNX model; its reference is onnx's own evaluator on the model in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.support.written import written

ELEMENTS: dict[str, Any] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
}
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "tf32": 2e-3}
"""On max|y−r| / max|r|, by element type, or by what float32 is multiplied in."""


@dataclass(frozen=True)
class Case:
    """Nodes over an input ``x`` (others besides) and weights; the result is ``y``."""

    name: str
    nodes: str
    """As ONNX's text writes them."""
    inputs: Mapping[str, tuple[int, ...]]
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "float16")
    math: str = "float32"
    """The precision of the run: tf32 lets products of float32 be rounded."""
    small: bool = False
    """Inputs and result are int8; the result may be one step off."""

    def model(self, dtype: str) -> onnx.ModelProto:
        """Weights are scaled by their fan-in, so that results are of the order of one."""
        random = np.random.default_rng(len(self.name))
        given: dict[str, np.ndarray] = {}
        for name, shape in self.weights.items():
            fan = int(np.prod(shape[1:] if len(shape) == 4 else shape[:-1])) or 1
            given[name] = (random.standard_normal(shape) / fan**0.5).astype(dtype)
        for name, value in self.constants.items():
            array = np.asarray(value)
            given[name] = array.astype(dtype) if array.dtype.kind == "f" else array
        kind = "int8" if self.small else dtype.replace("float32", "float")
        inputs = ", ".join(f"{kind}{list(shape)} {name}" for name, shape in self.inputs.items())
        model = written(f"({inputs}) => ({kind}[] y) {{ {self.nodes} }}", given, opset=19)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        model.ir_version = 9
        return onnx.shape_inference.infer_shapes(model)

    def values(self, dtype: str) -> dict[str, np.ndarray]:
        random = np.random.default_rng(7)
        if self.small:
            return {
                n: random.integers(-128, 128, s).astype(np.int8) for n, s in self.inputs.items()
            }
        return {n: random.standard_normal(s).astype(dtype) for n, s in self.inputs.items()}

    def truth(self, dtype: str) -> np.ndarray:
        """In float64, from the weights and inputs as rounded to ``dtype``."""
        model = self.model(dtype)
        for weight in model.graph.initializer:
            array = numpy_helper.to_array(weight)
            if array.dtype.kind == "f":
                weight.CopyFrom(numpy_helper.from_array(array.astype(np.float64), weight.name))
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
            if value.type.tensor_type.elem_type == ELEMENTS[dtype]:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        inputs = self.values(dtype)
        if not self.small:
            inputs = {n: v.astype(np.float64) for n, v in inputs.items()}
        results: Any = ReferenceEvaluator(model).run(None, inputs)
        return np.asarray(results[0])


def conv(
    name: str,
    channels: int,
    filters: int,
    size: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    residual: bool = False,
) -> Case:
    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    inputs: dict[str, tuple[int, ...]] = {"x": (1, channels, size, size)}
    nodes = f"c = Conv<pads={[pad] * 4}, strides={[stride] * 2}, group={groups}>(x, w, b) "
    if residual:
        inputs["r"] = (1, filters, out, out)
    nodes += "s = Add(c, r) y = Relu(s)" if residual else "y = Relu(c)"
    weights = {"w": (filters, channels // groups, kernel, kernel), "b": (filters,)}
    return Case(name, nodes, inputs, weights)


GELU = (
    "q3 = Pow(q, three) q3k = Mul(q3, k) a = Add(q, q3k) as = Mul(a, s) t = Tanh(as) "
    "t1 = Add(t, one) qt = Mul(q, t1) y = Mul(qt, half)"
)
"""As exporters write it, with a hyperbolic tangent."""
OF_GELU = {"three": 3.0, "k": 0.044715, "s": (2 / np.pi) ** 0.5, "one": 1.0, "half": 0.5}


def dense(name: str, rows: int, taken: int, given: int, after: str = "") -> Case:
    weights = {"w": (taken, given), "b": (given,)}
    nodes = f"p = MatMul(x, w) q = Add(p, b) {after}" if after else "p = MatMul(x, w) y = Add(p, b)"
    return Case(name, nodes, {"x": (1, rows, taken)}, weights, OF_GELU if after == GELU else {})


def attention(name: str, heads: int, length: int, width: int, *, causal: bool = False) -> Case:
    """As exporters write it: heads moved in front, and back behind."""
    shape = (1, length, heads, width)
    masked, scores = ("m = Where(keep, t, low) ", "m") if causal else ("", "t")
    nodes = (
        "q = Transpose<perm=[0, 2, 1, 3]>(x) u = Transpose<perm=[0, 2, 1, 3]>(v) "
        "kt = Transpose<perm=[0, 2, 3, 1]>(k) s = MatMul(q, kt) t = Mul(s, scale) "
        f"{masked}w = Softmax<axis=-1>({scores}) "
        "o = MatMul(w, u) y = Transpose<perm=[0, 2, 1, 3]>(o)"
    )
    constants: dict[str, Any] = {"scale": width**-0.5}
    if causal:
        constants |= {"keep": np.tril(np.ones((1, 1, length, length), bool)), "low": -1e4}
    return Case(name, nodes, {"x": shape, "k": shape, "v": shape}, constants=constants)


def quantized(name: str, channels: int, filters: int, size: int, kernel: int) -> Case:
    """Conv, bias, ReLU on int8 values, with a scale for each filter."""
    random = np.random.default_rng(5)
    nodes = (
        "xf = DequantizeLinear(x, sx, zero) wf = DequantizeLinear<axis=0>(w, sw, zeros) "
        f"c = Conv<pads={[kernel // 2] * 4}>(xf, wf, b) r = Relu(c) y = QuantizeLinear(r, sy, zero)"
    )
    constants = {
        "sx": 0.025,
        "sy": 0.03,
        "zero": np.int8(0),
        "zeros": np.zeros(filters, np.int8),
        "w": random.integers(-127, 128, (filters, channels, kernel, kernel)).astype(np.int8),
        "sw": np.linspace(0.5, 1.0, filters) / 127 / (channels * kernel**2) ** 0.5,
    }
    sizes = {"x": (1, channels, size, size)}
    return Case(name, nodes, sizes, {"b": (filters,)}, constants, dtypes=("float32",), small=True)


CASES = (
    conv("stem 7x7", 3, 64, 224, 7, 2),
    conv("3x3 64@56", 64, 64, 56, 3),
    conv("1x1 256-64@56", 256, 64, 56, 1),
    conv("1x1 64-256@56 residual", 64, 256, 56, 1, residual=True),
    conv("3x3 128@28 stride 2", 128, 128, 56, 3, 2),
    conv("3x3 512@7", 512, 512, 7, 3),
    conv("3x3 128@56 32 groups", 128, 128, 56, 3, groups=32),
    conv("depthwise 96@112", 96, 96, 112, 3, groups=96),
    Case(
        "maxpool 3x3 64@112",
        "y = MaxPool<kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]>(x)",
        {"x": (1, 64, 112, 112)},
    ),
    Case("global pool 2048@7", "y = GlobalAveragePool(x)", {"x": (1, 2048, 7, 7)}),
    Case(
        "deconv 4x4 256-128@16",
        "y = ConvTranspose<strides=[2, 2], pads=[1, 1, 1, 1]>(x, w)",
        {"x": (1, 256, 16, 16)},
        {"w": (256, 128, 4, 4)},
    ),
    dense("bert 128x768x768", 128, 768, 768),
    dense("bert 128x768x3072 gelu", 128, 768, 3072, GELU),
    dense("gpt2 64x768x2304", 64, 768, 2304),
    dense("classifier 1x2048x1000", 1, 2048, 1000),
    dense("relu 128x512x512", 128, 512, 512, "y = Relu(q)"),
    attention("bert attention 12x128x64", 12, 128, 64),
    attention("gpt2 attention 12x64x64, causal", 12, 64, 64, causal=True),
    replace(
        conv("3x3 128@56 32 groups, tf32", 128, 128, 56, 3, groups=32),
        dtypes=("float32",),
        math="tf32",
    ),
    quantized("int8 3x3 64@56", 64, 64, 56, 3),
    quantized("int8 1x1 256-64@56", 256, 64, 56, 1),
    Case("softmax 12x128x128", "y = Softmax<axis=-1>(x)", {"x": (1, 12, 128, 128)}),
    Case(
        "layer norm 128x768",
        "y = LayerNormalization<axis=-1>(x, w, b)",
        {"x": (1, 128, 768)},
        {"w": (768,), "b": (768,)},
    ),
    Case(
        "add relu 256@56",
        "s = Add(x, r) y = Relu(s)",
        {"x": (1, 256, 56, 56), "r": (1, 256, 56, 56)},
    ),
)
