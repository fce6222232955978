"""Proves on a model's graph that inputs may be padded along one of its named dimensions.

What is behind the end of a padded input must reach no element that is kept. The proof follows, from
the inputs to the outputs, along which axes of each value the elements belong to positions of the
dimension, such that those of a smaller input are the first ones of a larger input's. An operator
keeps them apart where a rule here says so: it works on each element, on each row, or on each part
of a batch. Where no rule says so nothing is proved, and no padding is offered. So it is for
reductions, Softmax, TopK and CumSum along the dimension, for attention within a padded sequence
(that a mask hides the rest is a matter of values), and for operators without a rule.

Sizes that a model computes of its inputs (``Shape``) may only say how a value is laid out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from collage_engine.model.draft import node_name
from collage_engine.model.onnx_cleanup import without_functions
from collage_engine.model.onnx_expand import SOFTMAX_OF_ONE_AXIS
from collage_engine.model.onnx_outer_values import outer_values
from collage_engine.model.onnx_standard import in_known_opset
from collage_engine.records.shapes import AxesOfValues, PaddingProofs

Size = int | str | None
"""A size: a number, the name of a dimension of the inputs, or None where it is not known."""

_words = str.split
_EACH_ELEMENT = _words(
    """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr
    BitwiseXor Cast Ceil Celu Clip Cos Cosh DequantizeLinear Div Dropout Elu Equal Erf Exp
    Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less
    LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow QuantizeLinear Reciprocal Relu
    Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu
    Where Xor"""
)
"""Operators each element of whose result is made of the elements at its place in the inputs."""
_OF_A_BATCH = _words(
    """AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool
    GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool MaxPool SpaceToDepth"""
)
"""Operators that work on each part of a batch, the first axis of their first input, by itself."""
_REDUCTIONS = _words(
    """ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare"""
)
_REGROUPINGS = _words("Flatten Reshape Squeeze Unsqueeze")
"""Operators that give the same elements in the same order another shape."""
_FOLLOWS_SIZES = 17
"""Operator set from which on ONNX follows computed sizes through Unsqueeze; models of 13 or newer
mean the same in it, as far as the rules here know their operators."""


class NotProved(Exception):
    """Padding is not proved to be harmless; the text says where the proof ends."""


def paddable(model: ModelProto, dim: str) -> tuple[AxesOfValues, AxesOfValues]:
    """Prove that inputs may be padded along a dimension.

    Args:
        model: The user's model; it is not changed, and its large weights are not needed.
        dim: A dimension that its inputs name.

    Returns:
        The axes of the inputs and of the outputs that have the dimension's size. Whatever stands
        behind the end of the inputs along these changes nothing before the end of the outputs.

    Raises:
        NotProved: It may change something.
    """
    return _Proof(model, dim).run()


def paddable_dimensions(model: ModelProto, dims: Iterable[str]) -> PaddingProofs:
    """Return what ``paddable`` gives for each of some dimensions, or why there is no proof."""
    proofs: PaddingProofs = {}
    for dim in dims:
        try:
            proofs[dim] = paddable(model, dim)
        except NotProved as error:
            proofs[dim] = str(error)
    return proofs


class _Mixes(Exception):
    """A node is not known to keep positions of the dimension apart."""


class _Proof:
    def __init__(self, model: ModelProto, dim: str) -> None:
        plain = without_functions(in_known_opset(deepcopy(model), "the model"))
        self.graph, self.dim = plain.graph, dim
        domains = {each.domain: each.version for each in plain.opset_import}
        self.opset = domains.get("", 1)
        self.axes: dict[str, set[int]] = {}
        """The axes of each value that the padding reaches."""
        self.sizes: dict[str, Sequence[Size]] = {}
        """Values that depend on the dimension's size, and what is known of the sizes in them."""
        self.constants = {t.name: t for t in plain.graph.initializer}
        self.dims: dict[str, list[Size]] = {t.name: [*t.dims] for t in plain.graph.initializer}
        del plain.graph.value_info[:]  # what a file says of its values may be wrong
        for output in plain.graph.output:
            output.type.tensor_type.ClearField("shape")
        for each in plain.opset_import:
            if not each.domain and each.version >= SOFTMAX_OF_ONE_AXIS:
                each.version = max(each.version, _FOLLOWS_SIZES)
        graph = shape_inference.infer_shapes(plain, data_prop=True).graph
        values = (*graph.input, *graph.value_info, *graph.output)
        self.elements = {value.name: value.type.tensor_type.elem_type for value in values}
        named = {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim} - {""}
        for value in values:
            if value.type.tensor_type.HasField("shape"):
                self.dims[value.name] = [
                    d.dim_value
                    if d.HasField("dim_value")
                    else next((name for name in named if name == d.dim_param), None)
                    for d in value.type.tensor_type.shape.dim
                ]

    def run(self) -> tuple[AxesOfValues, AxesOfValues]:
        inputs = [value.name for value in self.graph.input if value.name not in self.constants]
        outputs = [value.name for value in self.graph.output]
        for name in inputs:
            for size in self.dims.get(name, []):
                parts = re.findall(r"\w+", size) if isinstance(size, str) else []
                if size != self.dim and self.dim in parts:
                    raise NotProved(f"'{size}' of the input '{name}' may depend on it")
            self._keep(name, (a for a, s in enumerate(self.dims.get(name, [])) if s == self.dim))
        for node in self.graph.node:
            try:
                self._node(node)
            except (_Mixes, IndexError):  # or it has not the inputs and attributes that it should
                raise NotProved(
                    f"'{node_name(node)}' ({node.op_type}) is not known to compute what belongs to "
                    "one position by itself"
                ) from None
        for name in outputs:
            if name in self.sizes:
                raise NotProved(f"the output '{name}' is made of the size itself")
        of_inputs, of_outputs = (
            {name: tuple(sorted(self.axes[name])) for name in names if name in self.axes}
            for names in (inputs, outputs)
        )
        return of_inputs, of_outputs

    def _keep(self, name: str, axes: Iterable[int]) -> None:
        if name and (kept := set(axes)):
            self.axes[name] = kept
            for axis in kept if name in self.dims else ():
                self.dims[name][axis] = self.dim

    def _node(self, node: NodeProto) -> None:
        inputs = [value for value in (*node.input, *outer_values(node)) if value]
        padded = [value for value in inputs if value in self.axes]
        sized = [value for value in inputs if value in self.sizes]
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            self.constants[node.output[0]] = node.attribute[0].t
        if not padded and not sized:
            return
        if node.domain:
            raise _Mixes
        if node.op_type == "Expand" and {*sized} <= {node.input[1]} - self.axes.keys():
            self._keep(node.output[0], self._expanded(node))
        elif not padded or node.op_type in ("Shape", "Size"):
            self._of_sizes(node)
        elif sized and (node.op_type != "Reshape" or node.input[0] in self.sizes):
            raise _Mixes
        else:
            axes = self._rule(node)(node)
            for name in node.output:
                self._keep(name, axes)

    def _of_sizes(self, node: NodeProto) -> None:
        """Take a node that reads sizes alone; its results depend on them, but for picked ones."""
        sizes: Sequence[Size] = [None]
        if node.op_type == "Shape":
            part = slice(_attribute(node, "start", 0), _attribute(node, "end", None))
            sizes = self._dims(node.input[0])[part]
        elif node.op_type == "Gather" and node.input[0] in self.sizes:
            listed = self.sizes[node.input[0]]
            places = self._numbers(node.input[1])
            sizes = [listed[p] if -len(listed) <= p < len(listed) else None for p in places]
        if not all(isinstance(size, int) for size in sizes):
            self.sizes |= dict.fromkeys(node.output, sizes)

    # -- rules: the axes of a node's results ---------------------------------------------

    def _rule(self, node: NodeProto) -> Callable[[NodeProto], Iterable[int]]:
        if node.op_type in _EACH_ELEMENT:
            return self._each_element
        if node.op_type in _REGROUPINGS:
            return self._regrouped
        others = {
            "Concat": self._joined,
            "Gather": self._gathered,
            "Gemm": self._product,
            "MatMul": self._product,
            "Transpose": self._transposed,
        }
        return others.get(node.op_type, self._along_other_axes)

    def _each_element(self, node: NodeProto) -> Iterable[int]:
        values = [value for value in node.input if value]
        scaled = node.op_type in ("QuantizeLinear", "DequantizeLinear")
        if scaled and any(size != 1 for value in values[1:] for size in self._dims(value)):
            raise _Mixes  # numbers for each channel, or each block of them
        whole = node.op_type in ("Div", "Mod") and self.elements.get(values[1]) not in _FLOATS
        if whole and values[1] in self.axes:
            raise _Mixes  # zeros divide no whole numbers
        return self._broadcast(values, max(len(self._dims(value)) for value in values))

    def _expanded(self, node: NodeProto) -> Iterable[int]:
        result = self._dims(node.output[0])
        axes = {axis for axis, size in enumerate(result) if size == self.dim}
        if None in result or self._broadcast(node.input[:1], len(result), axes) != axes:
            raise _Mixes
        return axes

    def _broadcast(
        self, values: Sequence[str], rank: int, axes: Iterable[int] = (), last: int = 0
    ) -> set[int]:
        """Return the axes of what values make together, with those that it has anyhow.

        A value that stands for all positions must have one element along the axis, or no such axis;
        the ``last`` axes are not looked at.
        """
        axes_kept = set(axes)
        for value in values:
            axes_kept |= {a + rank - len(self._dims(value)) for a in self.axes.get(value, ())}
        for value in values:
            for own in (a - rank + len(self._dims(value)) for a in axes_kept if a < rank - last):
                alone = own < 0 or self._dims(value)[own] == 1
                if not alone and own not in self.axes.get(value, ()):
                    raise _Mixes
        return axes_kept

    def _along_other_axes(self, node: NodeProto) -> Iterable[int]:
        """Take an operator that may mix what lies along some axes, and leaves the others alone."""
        axes, rank = self._alone(node), len(self._dims(node.input[0]))
        mixed = {axis % max(rank, 1) for axis in self._mixed(node, rank)}
        if axes & mixed:
            raise _Mixes
        if node.op_type in _REDUCTIONS and not _attribute(node, "keepdims", 1):
            return {axis - sum(gone < axis for gone in mixed) for axis in axes}
        return axes

    def _mixed(self, node: NodeProto, rank: int) -> Iterable[int]:
        kind = node.op_type
        if kind in ("ArgMax", "ArgMin"):
            return [_attribute(node, "axis", 0)]
        if kind in _REDUCTIONS:
            given = node.input[1] if len(node.input) > 1 else ""
            axes = self._numbers(given) if given else _attribute(node, "axes", [])
            return axes or range(rank)
        if kind in ("LayerNormalization", "RMSNormalization"):
            return range(_attribute(node, "axis", -1) % rank, rank)
        if kind in ("Softmax", "LogSoftmax", "Hardmax"):
            if self.opset >= SOFTMAX_OF_ONE_AXIS:
                return [_attribute(node, "axis", -1)]
            return range(_attribute(node, "axis", 1) % rank, rank)
        if kind in ("Slice", "Split", "TopK"):  # an axis that they change has no such size any more
            sizes = self._dims(node.output[0])
            return [axis for axis in range(rank) if sizes[axis] != self.dim]
        if kind == "Pad" and len(node.input) > 1:
            pads = self._numbers(node.input[1])
            return [axis for axis in range(rank) if len(pads) != 2 * rank or any(pads[axis::rank])]
        if kind in _OF_A_BATCH and not _attribute(node, "training_mode", 0):
            return range(1, rank)
        return range(rank)

    def _transposed(self, node: NodeProto) -> Iterable[int]:
        order = _attribute(node, "perm", [*range(len(self._dims(node.input[0])))][::-1])
        return [order.index(axis) for axis in self.axes[node.input[0]]]

    def _joined(self, node: NodeProto) -> Iterable[int]:
        axes = self.axes.get(node.input[0], set())
        if any(self.axes.get(value) != axes for value in node.input):
            raise _Mixes
        if _attribute(node, "axis", 0) % len(self._dims(node.input[0])) in axes:
            raise _Mixes
        return axes

    def _gathered(self, node: NodeProto) -> Iterable[int]:
        data, places = node.input
        axis = _attribute(node, "axis", 0) % len(self._dims(data))
        padded, more = self.axes.get(data, set()), len(self._dims(places)) - 1
        if axis in padded:
            raise _Mixes
        kept = {each if each < axis else each + more for each in padded}
        return kept | {axis + each for each in self.axes.get(places, ())}

    def _product(self, node: NodeProto) -> Iterable[int]:
        """Follow rows, columns and batches; what is summed must not be padded."""
        (left, right), added = node.input[:2], [value for value in node.input[2:] if value]
        a, b = len(self._dims(left)), len(self._dims(right))
        rows, columns = self.axes.get(left, set()), self.axes.get(right, set())
        turned = _attribute(node, "transA", 0) or (columns and _attribute(node, "transB", 0))
        if min(a, b) < 2 or turned or any(value in self.axes for value in added):
            raise _Mixes
        if a - 1 in rows or b - 2 in columns:
            raise _Mixes
        kept = self._broadcast([left, right], max(a, b), last=2)
        return self._broadcast(added, max(a, b), kept)

    def _regrouped(self, node: NodeProto) -> Iterable[int]:
        """Follow axes through another shape: as many elements stand before an axis as did."""
        padded = self._alone(node)
        before, after = self._dims(node.input[0]), self._dims(node.output[0])
        if after.count(None) == 1:
            after[after.index(None)] = _rest(before, after)
        axes_kept = [axis for axis, size in enumerate(after) if size == self.dim]
        counts = [_count(before[:axis]) for axis in sorted(padded)]
        if None in counts or counts != [_count(after[:axis]) for axis in axes_kept]:
            raise _Mixes
        return axes_kept

    def _alone(self, node: NodeProto) -> set[int]:
        """Return the axes of the first input, the only one that the padding may reach."""
        if node.input[0] not in self.axes or any(v in self.axes for v in node.input[1:]):
            raise _Mixes
        return self.axes[node.input[0]]

    def _dims(self, name: str) -> list[Size]:
        if name not in self.dims:
            raise _Mixes
        return self.dims[name]

    def _numbers(self, name: str) -> list[int]:
        """Return the numbers of a constant."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            raise _Mixes
        return [int(number) for number in np.ravel(numpy_helper.to_array(tensor))]


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    attribute = next((a for a in node.attribute if a.name == name), None)
    return default if attribute is None else helper.get_attribute_value(attribute)


def _count(sizes: Sequence[Size]) -> tuple[int, list[str]] | None:
    """Return how many elements sizes mean: a number, and the names that multiply it."""
    if None in sizes:
        return None
    names = sorted(size for size in sizes if isinstance(size, str))
    return math.prod(size for size in sizes if isinstance(size, int)), names


def _rest(whole: Sequence[Size], parts: Sequence[Size]) -> Size:
    """Return the size that is missing among parts of a whole; None where it is no single one."""
    there, given = _count(whole), _count([size for size in parts if size is not None])
    if there is None or given is None or not given[0]:
        return None
    number, over = divmod(there[0], given[0])
    names = Counter(there[1])
    names.subtract(given[1])
    left = [*names.elements()]
    if over or min(names.values(), default=0) < 0 or (left and (len(left), number) != (1, 1)):
        return None
    return left[0] if left else number


_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
