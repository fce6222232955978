"""Writes nodes of a model by their definitions where a runtime's kernels may leave these.

What evaluates models is a runtime, too, and its kernels are as wrong as others': on processors
without instructions for 8 bits (VNNI) it adds products of uint8 and int8 in pairs of 16 bits, which
saturate; normalisations far from zero lose their digits; a Sigmoid of -20 is 0; the maximum of NaN
is a number. So its evaluation is the truth only of a model in which such nodes are written by
others that are exact, or are computed in float64:

- Products of whole numbers are products of float64, which holds every sum up to 2^53. There is no
  convolution of float64; a convolution of float32 is exact while sums stay below 2^24, which up to
  four of them over digits to the base 16 do for up to 65,536 products for each value.
- Normalisations, Softmax and Sigmoid are computed in float64.
- Sums of whole numbers of 64 bits are made of sums that float64 holds.
- A maximum over values of which one is NaN is NaN.

Results keep their names and element types. The logarithm of a Softmax or Sigmoid is one function,
as in the cleaned model (``model/onnx_expand.py``): it has a value where these are 0.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
    shape_inference,
)

from collage_engine.model.onnx_cleanup import without_functions
from collage_engine.model.onnx_expand import loses_logarithm
from collage_engine.model.onnx_outer_values import branches, with_branches

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
ROUNDS = 1.5 * 2.0**52
"""Added to a float64 below 2^51 and subtracted again it rounds to the nearest whole number, halves
to even; Round is no operator of opset 10."""
MICROSOFT = "com.microsoft"

WHOLE = ("a", "b", "a_zero", "b_zero")
IN_STEPS = ("a", "a_scale", "a_zero", "b", "b_scale", "b_zero")
PRODUCTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "MatMulInteger"): WHOLE,
    ("", "ConvInteger"): WHOLE,
    ("", "QLinearMatMul"): (*IN_STEPS, "scale", "zero"),
    ("", "QLinearConv"): (*IN_STEPS, "scale", "zero", "sum_bias"),
    (MICROSOFT, "QGemm"): (*IN_STEPS, "sum_bias", "scale", "zero"),
    (MICROSOFT, "MatMulIntegerToFloat"): ("a", "b", "a_scale", "b_scale", *WHOLE[2:], "bias"),
    (MICROSOFT, "DynamicQuantizeMatMul"): ("a", "b", "b_scale", "b_zero", "bias"),
}
"""What the inputs of products of whole numbers are, in their order. The result is scaled where
``a`` is, and in steps where it has a scale; ``sum_bias`` is added before it is scaled."""

LARGEST = 255
"""Largest size of an 8-bit number less its zero point."""
BASE = 16
EXACT = 2**24
"""Whole numbers up to which float32 holds all."""

Types = dict[str, tuple[int, tuple[int, ...] | None]]
"""Element type and sizes (0: open; None: all unknown) of values by name."""


def by_definition(model: ModelProto) -> ModelProto:
    """Return a model whose evaluation is what the standard says; itself where nothing changes.

    Args:
        model: The model, which stays as it is; its large weights are best in files.
    """
    if not is_affected(model):
        return model
    copy = ModelProto()
    copy.CopyFrom(without_functions(model))
    for node in copy.graph.node if model.functions else ():
        node.name = ""  # what takes the place of a call shares its name
    opset = max([i.version for i in copy.opset_import if i.domain in ("", "ai.onnx")] or [1])
    _rewrite(copy.graph, _types(copy), opset)
    return copy


def is_affected(model: ModelProto) -> bool:
    """Tell whether a model holds a node that ``by_definition`` may write by others."""
    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    return any(_key(node) in _DEFINITIONS for node in with_branches(nodes))


def _key(node: NodeProto) -> tuple[str, str]:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)


def _rewrite(graph: GraphProto, types: Types, opset: int) -> None:
    nodes = []
    makers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rewrite(attribute.g, types, opset)
        define = _DEFINITIONS.get(_key(node))
        writer = _Writer(node, types, makers, opset)
        if define is None or not define(writer):
            nodes.append(node)
        else:
            nodes += writer.nodes
    written = GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(written.node)


def _types(model: ModelProto) -> Types:
    """Return what is declared of values, and what ONNX infers of the others."""
    with contextlib.suppress(RuntimeError, ValueError, TypeError, shape_inference.InferenceError):
        model = shape_inference.infer_shapes(model)  # else what is declared remains
    types: Types = {}
    for graph in (model.graph, *branches(with_branches(model.graph.node))):
        for value in (*graph.input, *graph.output, *graph.value_info):
            kind = value.type.tensor_type
            shape = tuple(d.dim_value for d in kind.shape.dim) if kind.HasField("shape") else None
            if kind.elem_type:
                types[value.name] = kind.elem_type, shape
        types |= {t.name: (t.data_type, tuple(t.dims)) for t in graph.initializer}
    return types


class _Writer:
    """Writes the nodes that take the place of one node."""

    def __init__(
        self, node: NodeProto, types: Types, makers: Mapping[str, NodeProto], opset: int
    ) -> None:
        self.node = node
        self.types = types
        self.makers = makers
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self.attributes = {a.name: a for a in node.attribute}

    def __call__(
        self, op: str, *inputs: str, given: Iterable[AttributeProto] = (), **attributes: Any
    ) -> str:
        """Write a node of the standard with one output; return the output's name."""
        result = f"{next(filter(None, self.node.output))}/definition/{len(self.nodes)}"
        node = helper.make_node(op, inputs, [result], **attributes)
        node.attribute.extend(given)
        self.nodes.append(node)
        return result

    def input(self, index: int) -> str:
        """Return the name of an input of the node; empty where it is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def attribute(self, name: str, default: float) -> float:
        """Return the value of a numeric attribute."""
        attribute = self.attributes.get(name)
        return float(helper.get_attribute_value(attribute)) if attribute is not None else default

    def type_of(self, value: str, default: int = TensorProto.FLOAT) -> int:
        """Return the element type of a value."""
        return self.types.get(value, (default, None))[0]

    def shape_of(self, value: str) -> tuple[int, ...] | None:
        """Return the sizes of a value; None: they are not known."""
        return self.types.get(value, (0, None))[1]

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        """Write a constant."""
        return self("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def sizes(self, value: str, *sizes: int) -> str:
        """Write a value in another shape; a size of 0 stays as it is, -1 is what remains."""
        return self("Reshape", value, self.constant(sizes, np.int64))

    def double(self, value: str) -> str:
        """Write a value in float64."""
        return self("Cast", value, to=TensorProto.DOUBLE)

    def column(self, value: str) -> str:
        """Write a vector, or a single number, as a matrix of one column."""
        return self.sizes(value, -1, 1)

    def rows(self, value: str) -> str:
        """Write a vector with an element for each row of a matrix, in float64, as a column."""
        wide, shape = self.double(value), self.shape_of(value) or ()
        return self.column(wide) if len(shape) == 1 and shape != (1,) else wide

    def shifted(self, value: str, zero: str) -> str:
        """Write a whole number less its zero point, in float64."""
        wide = self.double(value)
        return self("Sub", wide, self.double(zero)) if zero else wide

    def cast(self, value: str, element: int, output: str) -> bool:
        """Write a value in an element type as an output of the node."""
        self.nodes.append(helper.make_node("Cast", [value], [output], to=element))
        return True

    def quantised(self, value: str, zero: str, output: str) -> bool:
        """Write a value in steps, rounded and saturated in the type of its zero point."""
        element = self.type_of(zero, TensorProto.UINT8)
        ends = np.iinfo(helper.tensor_dtype_to_np_dtype(element))
        magic = self.constant(ROUNDS)
        whole = self("Sub", self("Add", value, magic), magic)
        if zero:
            whole = self("Add", whole, self.double(zero))
        inside = self("Max", self("Min", whole, self.constant(ends.max)), self.constant(ends.min))
        return self.cast(inside, element, output)

    def mean(self, value: str) -> str:
        """Write the mean along the last of three axes."""
        if self.opset < AXES_ARE_INPUTS:
            return self("ReduceMean", value, axes=[2], keepdims=1)
        return self("ReduceMean", value, self.constant([2], np.int64), keepdims=1)


AXES_ARE_INPUTS = 18
"""Operator set from which on the axes of ReduceMean are an input (ONNX, changelog)."""


def _product(w: _Writer) -> bool:
    """Write a product of whole numbers, in steps or as floats where it comes with scales."""
    given = defaultdict(str, zip(PRODUCTS[_key(w.node)], w.node.input, strict=False))
    output = w.node.output[0]
    if w.node.op_type == "DynamicQuantizeMatMul":
        names = [f"{output}/definition/{what}" for what in ("data", "scale", "zero")]
        w.nodes.append(helper.make_node("DynamicQuantizeLinear", [given["a"]], names))
        given["a"], given["a_scale"], given["a_zero"] = names
    convolves = "Conv" in w.node.op_type
    product = (_exact_convolution if convolves else _exact_matrix_product)(w, given)
    if not given["a_scale"]:
        return w.cast(product, TensorProto.INT32, output)
    scales, bias = w.double(given["b_scale"]), w.double(given["sum_bias"] or w.constant(0))
    value = product
    if convolves:
        value, scales, bias = w.sizes(product, 0, 0, -1), w.column(scales), w.column(bias)
    scales = w("Mul", w.rows(given["a_scale"]), scales)
    scales = w("Mul", scales, w.constant(w.attribute("alpha", 1)))
    value = w("Mul", w("Add", value, bias), scales)
    if given["bias"]:
        value = w("Add", value, w.double(given["bias"]))
    if convolves:
        value = w("Reshape", value, w("Shape", product))
    if given["scale"]:
        return w.quantised(w("Div", value, w.double(given["scale"])), given["zero"], output)
    return w.cast(value, w.type_of(given["a_scale"]), output)


def _exact_matrix_product(w: _Writer, given: Mapping[str, str]) -> str:
    """Write a product of matrices of 8-bit numbers with their zero points, in float64."""
    left, right = w.double(given["a"]), w.double(given["b"])
    if w.attribute("transA", 0):
        left = w("Transpose", left, perm=[1, 0])
    if w.attribute("transB", 0):
        right = w("Transpose", right, perm=[1, 0])
    if given["a_zero"]:
        left = w("Sub", left, w.rows(given["a_zero"]))
    if given["b_zero"]:
        right = w("Sub", right, w.double(given["b_zero"]))
    return w("MatMul", left, right)


def _quantised_attention(w: _Writer) -> bool:
    data, weight, bias, scale, weight_scale, mask, zero, weight_zero, past = (
        w.input(index) for index in range(9)
    )
    element = w.type_of(scale)
    floats = [
        w("Cast", w("Mul", w.shifted(value, z), w.double(s)), to=element)
        for value, z, s in ((data, zero, scale), (weight, weight_zero, weight_scale))
    ]
    node = helper.make_node(
        "Attention", [*floats, bias, mask, past], w.node.output, domain=MICROSOFT
    )
    node.attribute.extend(w.node.attribute)
    w.nodes.append(node)
    return True


def _quantised_lstm(w: _Writer) -> bool:
    """Have it read int8 weights as uint8, whose products are exact: it quantises step by step."""
    node = NodeProto()
    node.CopyFrom(w.node)
    for weight, zero in ((1, 9), (2, 11)):
        for index in (weight, zero):
            if w.type_of(w.input(weight)) == TensorProto.INT8 and w.input(index):
                number = w("Cast", w.input(index), to=TensorProto.INT32)
                moved = w("Add", number, w.constant(128, np.int32))
                node.input[index] = w("Cast", moved, to=TensorProto.UINT8)
    w.nodes.append(node)
    return True


def _exact_convolution(w: _Writer, given: Mapping[str, str]) -> str:
    """Write a convolution of 8-bit numbers with their zero points; it is returned in float64."""
    numbers = w("Cast", given["a"], to=TensorProto.FLOAT)
    if given["a_zero"]:
        numbers = w("Sub", numbers, w("Cast", given["a_zero"], to=TensorProto.FLOAT))
    kernel = w("Cast", given["b"], to=TensorProto.FLOAT)
    if given["b_zero"]:  # each output channel may have one
        zeros = w.column(w("Cast", given["b_zero"], to=TensorProto.FLOAT))
        flat = w("Sub", w.sizes(kernel, 0, -1), zeros)
        kernel = w("Reshape", flat, w("Shape", kernel))
    shape = w.shape_of(given["b"])
    products = math.prod(shape[1:]) if shape and all(shape) else EXACT
    parts = [
        w("Mul", w.double(w("Conv", a, b, given=w.node.attribute)), w.constant(a_unit * b_unit))
        for a, a_unit in _digits(w, numbers, split=products * LARGEST * BASE > EXACT)
        for b, b_unit in _digits(w, kernel, split=products * LARGEST * LARGEST > EXACT)
    ]
    return w("Sum", *parts)


def _digits(w: _Writer, value: str, *, split: bool) -> Sequence[tuple[str, int]]:
    """Write the digits of whole numbers to the base 16, in float32, with their units.

    The lower one is 0 to 15, the higher one of numbers within ±255 is -16 to 15.

    Args:
        w: The writer.
        value: The numbers, in float32.
        split: Whether they are split at all.
    """
    if not split:
        return [(value, 1)]
    high = w("Floor", w("Mul", value, w.constant(1 / BASE, np.float32)))
    low = w("Sub", value, w("Mul", high, w.constant(BASE, np.float32)))
    return [(high, BASE), (low, 1)]


def _in_float64(w: _Writer) -> bool:
    """Compute the node itself in float64."""
    node = NodeProto()
    node.CopyFrom(w.node)
    node.input[:] = [w.double(value) if value else "" for value in w.node.input]
    node.output[:] = [f"{value}/definition" if value else "" for value in w.node.output]
    if w.node.op_type == "GroupNormalization" and w.opset >= STASH_TYPE:
        del node.attribute[:]
        node.attribute.extend(a for a in w.node.attribute if a.name != "stash_type")
        node.attribute.append(helper.make_attribute("stash_type", TensorProto.DOUBLE))
    w.nodes.append(node)
    for made, wanted in zip(node.output, w.node.output, strict=True):
        if wanted:
            w.cast(made, w.type_of(wanted), wanted)
    return True


STASH_TYPE = 21
"""Operator set from which on GroupNormalization says in which type it normalises (ONNX)."""


def _sigmoid(w: _Writer) -> bool:
    growth = w("Exp", w("Neg", w.double(w.input(0))))
    value = w("Reciprocal", w("Add", growth, w.constant(1)))
    return w.cast(value, w.type_of(w.input(0)), w.node.output[0])


def _logarithm(w: _Writer) -> bool:
    """Write the logarithm of a Softmax or Sigmoid as a function of what these read."""
    maker = w.makers.get(w.input(0))
    if maker is None or not loses_logarithm(w.node, maker):
        return False
    data = w.double(maker.input[0])
    if maker.op_type == "Softmax":
        value = w("LogSoftmax", data, given=maker.attribute)
    else:
        tail = w("Add", w("Exp", w("Neg", w("Abs", data))), w.constant(1))
        value = w("Sub", w("Min", data, w.constant(0)), w("Log", tail))
    return w.cast(value, w.type_of(maker.input[0]), w.node.output[0])


def _instance_normalisation(w: _Writer) -> bool:
    data, scale, bias = w.node.input
    flat = w.sizes(w.double(data), 0, 0, -1)
    centred = w("Sub", flat, w.mean(flat))
    epsilon = w.constant(w.attribute("epsilon", 1e-5))
    deviation = w("Sqrt", w("Add", w.mean(w("Mul", centred, centred)), epsilon))
    value = w("Mul", w("Div", centred, deviation), w.sizes(w.double(scale), -1, 1))
    value = w("Add", value, w.sizes(w.double(bias), -1, 1))
    value = w("Reshape", value, w("Shape", data))
    return w.cast(value, w.type_of(data), w.node.output[0])


def _with_nan(w: _Writer) -> bool:
    """Compute a maximum or minimum, and write NaN wherever one of its values is NaN."""
    data, *axes = w.node.input
    element = w.type_of(data, TensorProto.UNDEFINED)
    if element not in FLOATS or w.opset < IS_NAN:
        return False
    node = NodeProto()
    node.CopyFrom(w.node)
    node.output[0] = f"{w.node.output[0]}/definition"
    w.nodes.append(node)
    marks = w("Cast", w("IsNaN", data), to=TensorProto.FLOAT)
    largest = w(w.node.op_type.replace("Min", "Max"), marks, *axes, given=w.node.attribute)
    marked = w("Greater", largest, w.constant(0, np.float32))
    nan = w.constant(np.nan, helper.tensor_dtype_to_np_dtype(element))
    chosen = helper.make_node("Where", [marked, nan, node.output[0]], w.node.output[:1])
    w.nodes.append(chosen)
    return True


IS_NAN = 9
"""Operator set from which on there are IsNaN and Where (ONNX, changelog)."""


def _sum_of_whole_numbers(w: _Writer) -> bool:
    """Write a sum of 64 bits, which ONNX Runtime adds in float64, as two sums of 32 bits each.

    ReduceL1 sums magnitudes, ReduceSumSquare squares.
    """
    data, *axes = w.node.input
    if w.type_of(data) != TensorProto.INT64:
        return False  # ONNX Runtime has none of uint64
    given = w.node.attribute
    if "axes" in w.attributes and w.opset >= SUM_AXES_ARE_INPUTS:
        axes = [w.constant(w.attributes["axes"].ints, np.int64)]
        given = [a for a in given if a.name != "axes"]
    if w.node.op_type == "ReduceL1":
        data = w("Abs", data)
    elif w.node.op_type == "ReduceSumSquare":
        data = w("Mul", data, data)
    base = w.constant(2**32, np.int64)
    high = w("Div", data, base)
    parts = (high, w("Sub", data, w("Mul", high, base)))
    upper, lower = (w("ReduceSum", part, *axes, given=given) for part in parts)
    w.nodes.append(helper.make_node("Add", [w("Mul", upper, base), lower], [w.node.output[0]]))
    return True


SUM_AXES_ARE_INPUTS = 13
"""Operator set from which on the axes of ReduceSum are an input (ONNX, changelog)."""


_DEFINITIONS: dict[tuple[str, str], Callable[[_Writer], bool]] = {
    **dict.fromkeys(PRODUCTS, _product),
    (MICROSOFT, "QAttention"): _quantised_attention,
    (MICROSOFT, "DynamicQuantizeLSTM"): _quantised_lstm,
    ("", "Log"): _logarithm,
    ("", "InstanceNormalization"): _instance_normalisation,
    ("", "Sigmoid"): _sigmoid,
    **{
        ("", op): _in_float64
        for op in ("GroupNormalization", "LayerNormalization", "LogSoftmax", "Softmax")
    },
    **{("", op): _with_nan for op in ("GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin")},
    **{("", op): _sum_of_whole_numbers for op in ("ReduceL1", "ReduceSum", "ReduceSumSquare")},
}
"""By domain and type how a node is written; the function tells whether it wrote it."""
