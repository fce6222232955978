"""Proves on a model's graph that its batch may be padded: no operator mixes the rows of one.

A batch is a value whose first axis, and no other one, is the named dimension. Each operator that
reads one must be known here to work on each row by itself, and give batches again; where ONNX's own
inference of shapes does not say that, or an operator has no rule, nothing is proved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, shape_inference

from collage_engine.model.dimensions import open_inputs
from collage_engine.model.onnx_cleanup import without_functions
from collage_engine.model.onnx_file import read_without_weights

Shape = list[int | str]
"""Sizes; of one that is not known the empty text."""

_words = str.split
_EACH_ELEMENT = _words(
    """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast
    Ceil Celu Clip Cos Cosh DequantizeLinear Div Dropout Elu Equal Erf Exp Floor Gelu Greater
    GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max
    Mean Min Mish Mod Mul Neg Not Or PRelu Pow QuantizeLinear Reciprocal Relu Round Selu Sigmoid
    Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"""
)
_OF_FIRST_INPUT = _words(
    """ArgMax ArgMin AveragePool BatchNormalization Conv ConvTranspose DepthToSpace
    GlobalAveragePool GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool MaxPool Pad
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare SpaceToDepth Split Transpose"""
)
"""Operators on one batch, which is none any longer where they change its first axis."""
_ALONG_LAST_AXIS = _words("Hardmax LayerNormalization LogSoftmax LpNormalization Softmax TopK")
"""Operators along an axis, by default the last one."""
_REGROUPINGS = _words("Flatten Reshape Squeeze Unsqueeze")
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_OF_SIZES = _words("Add Cast Concat Div Gather Mul Slice Squeeze Sub Unsqueeze")
"""Operators by which a model computes a shape of sizes."""


def batch_dimension(request: tuple[str | Path, Sequence[str]]) -> str | None:
    """Return the dimension along which a model's inputs may be padded, if that is proved of one.

    Args:
        request: The model's file, and its named dimensions.
    """
    path, dims = request
    model = without_functions(read_without_weights(path))
    inferred = shape_inference.infer_shapes(model, data_prop=True)
    return next((dim for dim in dims if _Rows(inferred, dim).are_apart()), None)


class _Rows:
    """The proof for one dimension.

    Args:
        model: The model, with the shapes of its values.
        dim: The dimension.
    """

    def __init__(self, model: ModelProto, dim: str) -> None:
        self._graph, self._dim = model.graph, dim
        self._given = list(open_inputs(model))
        values = (*self._graph.input, *self._graph.value_info, *self._graph.output)
        self._shapes = {value.name: _shape_of(value) for value in values}
        self._elements = {value.name: value.type.tensor_type.elem_type for value in values}
        self._shapes |= {tensor.name: [*tensor.dims] for tensor in self._graph.initializer}
        self._batches: set[str] = set()
        self._sizes: set[str] = set()
        """Values that depend on how many rows there are."""

    def are_apart(self) -> bool:
        """Tell whether all inputs and outputs are batches whose rows are not mixed."""
        self._batches.update(self._given)
        return (
            all(map(self._is_batch, self._given))
            and all(map(self._keeps_apart, self._graph.node))
            and self._batches.issuperset(value.name for value in self._graph.output)
        )

    def _is_batch(self, name: str) -> bool:
        shape = self._shapes.get(name) or [""]
        return shape[0] == self._dim and self._dim not in shape[1:]

    def _keeps_apart(self, node: NodeProto) -> bool:
        """Note what a node makes; False where it may mix rows."""
        read = {name for name in node.input if name}
        made = [name for name in node.output if name]
        if any(attribute.g.node for attribute in node.attribute):
            return False  # the values that a body reads are not among the inputs
        if not read & (self._batches | self._sizes):
            return True
        reads_rows = bool(read & self._batches)
        if node.op_type == "Shape" or (not reads_rows and node.op_type in _OF_SIZES):
            self._sizes.update(made)
            return True
        if any(self._shapes.get(name) is None for name in read):
            return False
        self._batches.update(made)
        return (
            node.domain in ("", "ai.onnx")
            and self._is_rule(node)
            and all(map(self._is_batch, made))
        )

    def _is_rule(self, node: NodeProto) -> bool:
        """Tell whether a node works on each row of the batches that it reads by itself."""
        op, batches = node.op_type, [name in self._batches for name in node.input]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        shapes = [self._shapes.get(name) or [] for name in node.input]
        made = self._shapes.get(node.output[0]) or []
        axis = attributes.get("axis", -1)
        if op in ("Expand", "ConstantOfShape"):  # rows that are equal
            return batches[0] or not shapes[0] or len(shapes[0]) < len(made) or shapes[0][0] == 1
        sizes = [name in self._sizes for name in node.input]
        if any(sizes) and (op != "Reshape" or sizes[0]):
            return False
        only_first = batches[0] and not any(batches[1:])
        if op in ("Div", "Mod") and batches[1] and self._elements[node.input[1]] not in _FLOATS:
            return False  # the zeros of padding divide no whole numbers: it ends the process
        if op in _EACH_ELEMENT:
            return all(
                len(shape) == len(made) if is_batch else len(shape) < len(made) or shape[0] == 1
                for shape, is_batch, name in zip(shapes, batches, node.input, strict=True)
                if name
            )
        rules: dict[str, Callable[[], bool]] = {
            "Concat": lambda: all(batches),
            "Gather": lambda: batches.count(True) == 1,
            "Gemm": lambda: only_first and not attributes.get("transA"),
            "MatMul": lambda: not all(batches) or len(shapes[0]) == len(shapes[1]) > 2,
        }
        if op in rules:
            return rules[op]()
        if op in _REGROUPINGS:
            size = _row_size(shapes[0])
            return only_first and size is not None and size == _row_size(made)
        if op in _ALONG_LAST_AXIS:
            return only_first and axis % len(made) != 0
        return op in _OF_FIRST_INPUT and only_first and not attributes.get("training_mode")


def _shape_of(value: ValueInfoProto) -> Shape | None:
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in dims]


def _row_size(shape: Shape) -> tuple[int, list[str]] | None:
    """Return the elements of a row as a number and named factors; None: they are not known."""
    names = sorted(size for size in shape[1:] if isinstance(size, str))
    return None if "" in names else (math.prod(s for s in shape[1:] if isinstance(s, int)), names)
