"""Models that multiply whole numbers of 8 bits over their whole range, as quantisers write them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from onnx import ModelProto

from collage_engine.model.importer import ImportedModel
from tests.support.written import written

TURNED = "float[4,32] x) => (float[4,8] y) { data, scale, zero = DynamicQuantizeLinear(x)"
"""A linear layer's input in 8 bits by its own range."""
BY_RANGE = "QuantizeLinear(x, s002, offset) d = DequantizeLinear(q, s002, offset)"
AROUND = "r = QuantizeLinear(p, s03, offset) y = DequantizeLinear(r, s03, offset)"
OWN = "com.microsoft"
TEXTS = {
    "dynamic linear": f"{TURNED} sums = MatMulInteger(data, w, zero, w_zero) "
    "floats = Cast<to = 1>(sums) f = Mul(scale, s001) p = Mul(floats, f) y = Add(p, bias) }",
    "integer product": "GIVEN[4,32] a) => (int32[4,8] y) { y = MatMulInteger(a, w) }",
    "dynamic convolution": "float[1,12,9,9] x) => (float[1,6,7,7] y) { "
    "data, scale, zero = DynamicQuantizeLinear(x) sums = ConvInteger(data, k_uint8, zero, s128) "
    "floats = Cast<to = 1>(sums) f = Mul(scale, s001) y = Mul(floats, f) }",
    "quantised product": "GIVEN[4,32] a) => (GIVEN[4,8] y) "
    "{ y = QLinearMatMul(a, s01, offset, w, scales, w_zeros, s5, offset) }",
    "quantised convolution": "GIVEN[1,12,9,9] a) => (GIVEN[1,6,7,7] y) "
    "{ y = QLinearConv(a, s01, offset, k, scales_6, zeros_6, s8, offset, bias_6) }",
    # The standard makes what lies between DequantizeLinear and QuantizeLinear in floats.
    "around MatMul": f"float[4,32] x) => (float[4,8] y) {{ q = {BY_RANGE} "
    f"m = DequantizeLinear(w, s001, zero_8) p = MatMul(d, m) {AROUND} }}",
    "around Gemm": f"float[4,32] x) => (float[4,8] y) {{ q = {BY_RANGE} "
    f"m = DequantizeLinear(w, s001, zero_8) p = Gemm(d, m) {AROUND} }}",
    "around Conv": f"float[1,12,9,9] x) => (float[1,6,7,7] y) {{ q = {BY_RANGE} "
    f"m = DequantizeLinear(k, s001, zero_8) p = Conv(d, m) {AROUND} }}",
    # As those of an attention.
    "around values": f"float[4,32] x, float[8,32] z) => (float[4,8] y) {{ q = {BY_RANGE} "
    "e = QuantizeLinear(z, s002, offset) f = DequantizeLinear(e, s002, offset) "
    f"t = Transpose<perm = [1, 0]>(f) p = MatMul(d, t) {AROUND} }}",
    # Quotients of which many are halves: the standard rounds them to even numbers.
    "ties": "float[16,64] x) => (GIVEN[16,64] y) "
    "{ r = Round(x) h = Mul(r, s05) y = QuantizeLinear(h, s1, offset) }",
    "own products": f"{TURNED} "
    f"y = {OWN}.MatMulIntegerToFloat(data, w, scale, s001, zero, zero_8, bias) }}",
    "own dynamic product": "float[4,32] x) => (float[4,8] y) "
    f"{{ y = {OWN}.DynamicQuantizeMatMul(x, w, s001, zero_8, bias) }}",
    "own gemm": "uint8[4,32] a) => (uint8[4,8] y) "
    f"{{ y = {OWN}.QGemm<transB = 1>(a, s01, offset, w_t, s001, zero_8, bias_8, s5, offset) }}",
    "own sum": "uint8[4,32] a, uint8[4,32] b) => (uint8[4,8] y) "
    f"{{ y = {OWN}.QLinearAdd(a, s05, z7, b, s025, z3, s13, z1) }}",
}
"""By name what the model is; GIVEN stands for the type of its values."""
FACTORS = {"s001": 0.01, "s002": 0.02, "s01": 0.1, "s025": 0.25, "s03": 0.3, "s05": 0.5}
FACTORS |= {"s1": 1.0, "s13": 1.3, "s5": 5.0, "s8": 8.0}


def whole(dtype: str, *shape: int) -> np.ndarray:
    """Numbers over the whole range of 8 bits."""
    ends = np.iinfo(dtype)
    return np.random.default_rng(shape).integers(ends.min, ends.max + 1, shape, dtype)


def case(name: str, given: str = "uint8", dtype: str = "int8") -> ModelProto:
    """Return the model of a name, for values and weights of these types."""
    middle = 120 if "quantised" in name or "gemm" in name else 100
    constants: dict[str, Any] = {n: np.float32(value) for n, value in FACTORS.items()} | {
        "offset": np.array(middle if given == "uint8" else 0, given),
        "w": whole(dtype, 32, 8),
        "w_t": whole(dtype, 8, 32),
        "w_zero": np.array(0 if dtype == "int8" else 128, dtype),
        "w_zeros": np.full(8, 0 if dtype == "int8" else 128, dtype),
        "k": whole("int8", 6, 12, 3, 3),
        "k_uint8": whole("uint8", 6, 12, 3, 3),
        "s128": np.uint8(128),
        "scales": np.linspace(0.01, 0.03, 8, dtype=np.float32),
        "scales_6": np.linspace(0.01, 0.03, 6, dtype=np.float32),
        "zero_8": np.int8(0),
        "zeros_6": np.zeros(6, np.int8),
        "bias": np.linspace(-0.1, 0.1, 8, dtype=np.float32),
        "bias_6": np.linspace(-(10**5), 10**5, 6, dtype=np.int32),
        "bias_8": np.arange(8, dtype=np.int32) * 1000,
        **{f"z{value}": np.uint8(value) for value in (1, 3, 7)},
    }
    text = TEXTS[name].replace("GIVEN", given)
    used = {n: constants[n] for n in constants if re.search(rf"\b{n}\b", text)}
    return written(f"({text}", used, opset=17, more=f'"{OWN}": 1')


CASES: dict[str, tuple[str, ...]] = {name: (name,) for name in TEXTS}
CASES |= {
    f"{name} int8": (name, "int8")
    for name in ("quantised product", "quantised convolution", "around MatMul", "around values")
}
CASES |= {
    "ties int8": ("ties", "int8"),
    "dynamic linear uint8": ("dynamic linear", "uint8", "uint8"),
    "integer product int8": ("integer product", "int8"),
}
"""By name the arguments of ``case``."""


def full_range_inputs(model: ImportedModel, seed: int = 1) -> dict[str, np.ndarray]:
    """Inputs over the whole range of 8 bits; floats are normal."""
    random = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for name, kind in model.inputs:
        if kind.dtype == "float32":
            made[name] = (random.standard_normal(kind.shape) * 4).astype(np.float32)
        else:
            ends = np.iinfo(kind.dtype)
            made[name] = random.integers(ends.min, ends.max + 1, kind.shape).astype(kind.dtype)
    return made
