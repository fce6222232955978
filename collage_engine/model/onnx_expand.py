"""Writes ONNX operators that Relax's importer lacks in terms of those that it has.

An If whose condition is known becomes the branch that is taken. The logarithm of a Softmax or
Sigmoid becomes one function, which has a value where these are 0 in float32.
Softmax and its like of old operator sets work along one axis.
Operators whose definition in ONNX is a function of simpler ones are inlined with it;
QLinearConv and QLinearMatMul become DequantizeLinear, the float operator, QuantizeLinear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, defs, helper, inliner

from collage_engine.model.draft import Draft, Op, op_from
from collage_engine.model.onnx_fold import taken_branch

_BY_DEFINITION = {
    "Attention",
    "BlackmanWindow",
    "Celu",
    "CenterCropPad",
    "HammingWindow",
    "HannWindow",
    "NegativeLogLikelihoodLoss",
    "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
    "SwiGLU",
    "Swish",
}


_SOFTMAXES = {"Hardmax", "LogSoftmax", "Softmax"}
SOFTMAX_OF_ONE_AXIS = 13
"""Operator set from which on they work along one axis (ONNX, changelog of Softmax)."""


def expand(draft: Draft) -> bool:
    """Expand, in place; the draft needs types. True when something changed."""
    kept: list[Op] = []
    changed = False
    makers = {output: op for op in draft.ops for output in op.outputs}
    uses = draft.uses()
    for op in draft.ops:
        maker = makers.get(op.input(0))
        if maker is not None and loses_logarithm(op, maker):
            expanded: list[Op] | None = _logarithm(draft, op, maker, uses[op.inputs[0]] == 1)
        else:
            expanded = _expanded(draft, op)
        kept += [op] if expanded is None else expanded
        changed |= expanded is not None
    draft.ops = kept
    return changed


def _expanded(draft: Draft, op: Op) -> list[Op] | None:
    if op.domain:
        return None
    if op.type == "If":
        return taken_branch(draft, op)
    if op.type in _BY_DEFINITION:
        return _inlined(draft, op)
    if op.type in _SOFTMAXES and draft.opset < SOFTMAX_OF_ONE_AXIS:
        return _of_one_axis(draft, op)
    if op.type == "QLinearConv":
        return _quantized_convolution(draft, op)
    if op.type == "QLinearMatMul":
        return _quantized_product(draft, op)
    return None


def loses_logarithm(node: Op | NodeProto, maker: Op | NodeProto) -> bool:
    """Tell whether a node is the logarithm of a Softmax or Sigmoid, which may be 0 in float32.

    Args:
        node: The node.
        maker: What makes its first input.
    """
    kinds = [n.type if isinstance(n, Op) else n.op_type for n in (node, maker)]
    plain = not (node.domain or maker.domain)
    return plain and kinds[0] == "Log" and kinds[1] in ("Softmax", "Sigmoid")


def _logarithm(draft: Draft, op: Op, maker: Op, alone: bool) -> list[Op]:
    """Return the logarithm of a Softmax or Sigmoid as one function of what these read.

    Args:
        draft: The draft.
        op: The logarithm.
        maker: The Softmax or Sigmoid.
        alone: Whether nothing else reads it.
    """
    if alone:
        op.take_in(maker)
    data = maker.inputs[0]
    if maker.type == "Softmax":
        return [op.part("LogSoftmax", [data], op.outputs, maker.attributes)]
    low, grown = (draft.fresh(f"{op.outputs[0]}_{what}") for what in ("negated", "softplus"))
    return [
        op.part("Neg", [data], [low]),
        op.part("Softplus", [low], [grown]),
        op.part("Neg", [grown], op.outputs),
    ]


def _of_one_axis(draft: Draft, op: Op) -> list[Op] | None:
    """Have a Softmax of an old operator set work along one axis, between reshapes if need be.

    It runs over all dimensions from ``axis`` on, and from operator set 13 on over one. Runtimes
    read the old ones as new ones.
    """
    shape = draft.shape(op.inputs[0])
    if shape is None:
        return None
    rank = len(shape)
    axis = op.attribute("axis", 1) % max(rank, 1)
    wide = [index for index in range(axis, rank) if shape[index] != 1]
    if len(wide) <= 1:
        op.set(axis=wide[0] if wide else max(rank - 1, 0))
        return None

    def reshape(value: str, sizes: Sequence[int], result: str) -> Op:
        target = draft.constant(f"{op.outputs[0]}_sizes", np.array(sizes, np.int64))
        return op.part("Reshape", [value, target], [result])

    flat = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    given, made = (draft.fresh(f"{op.outputs[0]}_{what}") for what in ("flat", "normalised"))
    over = op.part(op.type, [given], [made])
    over.set(axis=1)
    return [
        reshape(op.inputs[0], flat, given),
        over,
        reshape(made, shape, op.outputs[0]),
    ]


def _inlined(draft: Draft, op: Op) -> list[Op] | None:
    """Return the operator's definition; None where there is none, or ONNX cannot insert it."""
    used = [v for v in dict.fromkeys(op.inputs) if v]
    if not all(draft.element_type(v) and draft.shape(v) is not None for v in used):
        return None
    node = op.to_proto()
    # The inliner forgets the values that the standard declares for attributes left out.
    node.attribute.extend(
        attribute.default_value
        for name, attribute in defs.get_schema(op.type, draft.opset).attributes.items()
        if name not in op.attributes and attribute.default_value.type
    )
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(v, draft.element_type(v), draft.shape(v)) for v in used],
        [helper.make_empty_tensor_value_info(o) for o in op.outputs if o],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", draft.opset)])
    try:
        flat = inliner.inline_selected_functions(
            model, [("", op.type)], inline_schema_functions=True
        )
    except RuntimeError:  # ONNX 1.23 gives up on some inputs that are left out
        return None
    if any(n.op_type == op.type for n in flat.graph.node):
        return None
    rename = {v: v for v in (*used, *op.outputs)}
    made = [op_from(node, op.names) for node in flat.graph.node]
    for new in made:
        new.nodes, new.part_of, new.scope = op.nodes, op.onnx_type, op.scope
        for value in (*new.outputs, *new.inputs):
            if value and value not in rename:
                rename[value] = draft.fresh(f"{op.name}_{value}")
        new.inputs = [rename.get(v, v) for v in new.inputs]
        new.outputs = [rename.get(v, v) for v in new.outputs]
    return made


def _dequantized(draft: Draft, op: Op, first: int, axis: int | None = None) -> tuple[str, list[Op]]:
    """Return the float value of a quantised input at ``first``, and the operators that make it.

    Its scale and zero point are the inputs after it.
    """
    value, scale, zero = op.inputs[first : first + 3]
    if value in draft.constants and axis is not None and draft.opset < 13:
        # DequantizeLinear knows no axis yet.
        wide = draft.constants[value].astype(np.float32)
        shape = [1] * wide.ndim
        shape[axis] = -1
        scales, zeros = (draft.constants[v].reshape(-1) for v in (scale, zero))
        floats = (wide - zeros.reshape(shape if zeros.size > 1 else -1)) * scales.reshape(
            shape if scales.size > 1 else -1
        )
        return draft.constant(f"{value}_float", floats.astype(np.float32)), []
    made = op.part("DequantizeLinear", [value, scale, zero], [draft.fresh(f"{value}_float")])
    if axis is not None and draft.opset >= 13:
        made.set(axis=axis)
    return made.outputs[0], [made]


def _quantized_convolution(draft: Draft, op: Op) -> list[Op] | None:
    if not all(v in draft.constants for v in op.inputs[1:] if v):
        return None
    data, before = _dequantized(draft, op, 0)
    weights, more = _dequantized(draft, op, 3, axis=0)
    inputs = [data, weights]
    if op.input(8):
        scale = draft.constants[op.inputs[1]].reshape(-1) * draft.constants[op.inputs[4]].reshape(
            -1
        )
        floats = (draft.constants[op.inputs[8]] * scale).astype(np.float32)
        inputs.append(draft.constant(f"{op.outputs[0]}_bias", floats))
    conv = op.part("Conv", inputs, [draft.fresh(f"{op.outputs[0]}_float")], op.attributes)
    last = op.part("QuantizeLinear", [conv.outputs[0], *op.inputs[6:8]], list(op.outputs))
    return [*before, *more, conv, last]


def _quantized_product(draft: Draft, op: Op) -> list[Op] | None:
    if not all(v in draft.constants for v in (*op.inputs[1:3], *op.inputs[4:])):
        return None
    shape = draft.shape(op.inputs[3])
    if shape is None or draft.constants[op.inputs[1]].size != 1:
        return None
    columns = draft.constants[op.inputs[4]].size > 1
    if columns and draft.opset < 13 and op.inputs[3] not in draft.constants:
        return None
    a, before = _dequantized(draft, op, 0)
    b, more = _dequantized(draft, op, 3, axis=len(shape) - 1 if columns else None)
    product = op.part("MatMul", [a, b], [draft.fresh(f"{op.outputs[0]}_float")])
    last = op.part("QuantizeLinear", [product.outputs[0], *op.inputs[6:8]], list(op.outputs))
    return [*before, *more, product, last]
