"""Clean-up of an ONNX model with numpy, so that every toolchain meets the same plain graph.

Constants become initializers, constant sub-graphs and shape computations are folded,
Dropout and Identity go, Sum becomes Add, BatchNormalization is folded into its convolution.
Each node of the user's file is accounted for: it lives on, is absorbed by a named operator,
or is listed as folded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, helper, inliner, numpy_helper, shape_inference

from collage_engine.model import onnx_affine, onnx_expand
from collage_engine.model.constant_values import NotFoldable, evaluate
from collage_engine.model.draft import Draft, Op, node_name
from collage_engine.model.onnx_checks import check_operators, refuse_branches
from collage_engine.model.onnx_pads import explicit_pads, pads_into_convolutions
from collage_engine.model.onnx_quantized import dequantize_per_reader, pad_in_float
from collage_engine.records.errors import ModelError

_NEVER_FOLDED = {
    "DequantizeLinear",
    "If",
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
"""Operators that stay although their inputs are constants: results that differ from call to call;
int8 weights, which toolchains would lose; branches, which are taken instead (``onnx_branches``)."""
_LARGEST_GROWTH = 64 << 20
"""Bytes by which a folded result may exceed what it is computed from. Chosen: an exported model
should not grow by its ``Expand`` nodes."""


@dataclass(frozen=True)
class CleanModel:
    """The cleaned model, and where the user's nodes went."""

    onnx: ModelProto
    names: dict[str, tuple[str, ...]]
    """First output of a cleaned node → the user's nodes it stands for, its own first."""
    types: dict[str, tuple[int, tuple[int, ...] | None]]
    """Element type (0: unknown) and shape (None: not all known) of the values, by ONNX."""
    order: tuple[str, ...]
    """All of the user's nodes, in file order."""


def clean_up(model: ModelProto, path: str = "") -> CleanModel:
    """Clean a checked model with known input sizes. The argument is not kept, but changed."""
    order = tuple(dict.fromkeys(node_name(n) for n in model.graph.node))
    draft = Draft(_inlined(model))
    if draft.opset < 7:
        raise ModelError(
            f"{path} uses ONNX operator set {draft.opset}: convert it to 7 or newer "
            "(onnx.version_converter)."
        )
    _constants_to_initializers(draft, path)
    while True:
        before = len(draft.ops), len(draft.types)
        _sweep(draft, path)
        _drop_dead(draft)
        _infer(draft, path)
        if onnx_expand.expand(draft, path):
            check_operators(draft.ops, path)
            _constants_to_initializers(draft, path)
            _infer(draft, path)
            continue
        shapes_wait = any(op.type in ("Shape", "Size") for op in draft.ops)
        if not shapes_wait or (len(draft.ops), len(draft.types)) == before:
            break
    refuse_branches(draft.ops, path)
    onnx_affine.fold_affine(draft)
    pad_in_float(draft)
    dequantize_per_reader(draft)
    _drop_dead(draft)
    _infer(draft, path)
    explicit_pads(draft)
    pads_into_convolutions(draft)
    clean = draft.to_model()
    for name, (element, shape) in draft.types.items():
        if shape is not None and element and name not in draft.output_names:
            clean.graph.value_info.append(helper.make_tensor_value_info(name, element, shape))
    names = {op.outputs[0]: tuple(op.names) for op in draft.ops}
    return CleanModel(clean, names, draft.types, order)


def _inlined(model: ModelProto) -> ModelProto:
    """The model without local functions; what replaces a call goes by the call's name."""
    if not model.functions:
        return model
    local = {(f.domain, f.name) for f in model.functions}
    for node in model.graph.node:
        node.name = node_name(node)
    calls = {
        o: n.name for n in model.graph.node if (n.domain, n.op_type) in local for o in n.output
    }
    kept = {n.name for n in model.graph.node if (n.domain, n.op_type) not in local}
    flat = inliner.inline_local_functions(model)
    # The nodes of one call stand together and end with the one that makes its last output.
    owner = ""
    for node in reversed(flat.graph.node):
        owner = next((calls[o] for o in node.output if o in calls), owner)
        if node.name not in kept:
            node.name = owner
    return flat


def _constants_to_initializers(draft: Draft, path: str) -> None:
    kept = []
    for op in draft.ops:
        if op.type != "Constant" or op.domain:
            kept.append(op)
            continue
        values = _constant_value(op)
        if values is None:
            raise ModelError(f"{path}: the constant '{op.name}' holds no numbers: not supported.")
        draft.constants[op.outputs[0]] = values
    draft.ops = kept


def _constant_value(op: Op) -> np.ndarray | None:
    for name, dtype in (
        ("value", None),
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        value = op.attribute(name)
        if value is not None:
            return numpy_helper.to_array(value) if dtype is None else np.array(value, dtype)
    return None


def _sweep(draft: Draft, path: str) -> None:
    """Fold constants, drop what does nothing, split Sum: one pass in topological order."""
    alias: dict[str, str] = {}
    outputs = draft.output_names
    kept: list[Op] = []
    for op in draft.ops:
        op.inputs = [alias.get(v, v) for v in op.inputs]
        if _fold(draft, op):
            continue
        if _does_nothing(draft, op):
            value, source = op.outputs[0], op.inputs[0]
            if value not in outputs:
                alias[value] = source
                continue
            op.type, op.attributes, op.inputs, op.outputs = "Identity", {}, [source], [value]
        if op.type == "Dropout" and not op.domain:
            _refuse_training(draft, op, path)
        elif op.type in ("Sum", "Max", "Min") and not op.domain and len(op.inputs) > 2:
            kept += _chain(draft, op)
            continue
        elif op.type == "Sum" and not op.domain:
            op.type = "Add"
        kept.append(op)
    draft.ops = kept
    _rename_outputs(draft)


def _fold(draft: Draft, op: Op) -> bool:
    constants = draft.constants
    if not op.domain and op.type in ("Shape", "Size"):
        shape = draft.shape(op.inputs[0])
        if shape is None:
            return False
        if op.type == "Size":
            result = np.array(int(np.prod(shape)), np.int64)
        else:
            result = np.array(shape[op.attribute("start", 0) : op.attribute("end")], np.int64)
        results = [result]
    else:
        if op.type in _NEVER_FOLDED or not all(v in constants for v in op.inputs if v):
            return False
        if _grows(draft, op):
            return False
        try:
            results = evaluate(op, [constants[v] if v else None for v in op.inputs], draft.opset)
        except NotFoldable:
            return False  # It stays, as an operator on constants.
    outputs = draft.output_names
    if any(o in outputs for o in op.outputs):
        if op.type == "Identity":
            return False  # A constant output keeps one node that makes it.
        for value, result in zip(op.outputs, results, strict=False):
            if value and value not in outputs:
                constants[value] = result
        index = next(i for i, o in enumerate(op.outputs) if o in outputs)
        if sum(o in outputs for o in op.outputs) > 1:
            return False
        source = draft.constant(f"{op.outputs[index]}_value", results[index])
        op.type, op.attributes, op.inputs = "Identity", {}, [source]
        op.outputs = [op.outputs[index]]
        return False
    for value, result in zip(op.outputs, results, strict=False):
        if value:
            constants[value] = result
    return True


def _grows(draft: Draft, op: Op) -> bool:
    """Whether folding would blow a small constant up to a big one."""
    size = sum(int(np.prod(draft.shape(v) or (1,))) for v in op.inputs if v)
    if op.type == "ConstantOfShape":
        made = int(np.prod(draft.constants[op.inputs[0]]))
    elif op.type in ("Expand", "Tile"):
        made = size * int(np.prod(np.abs(draft.constants[op.inputs[1]])))
    else:
        return False
    return made * 4 > _LARGEST_GROWTH and made > 16 * size


def _does_nothing(draft: Draft, op: Op) -> bool:
    if op.domain:
        return False
    shape = draft.shape(op.inputs[0]) if op.inputs else None
    match op.type:
        case "Identity":
            return True
        case "Sum" | "Max" | "Min" | "Mean" | "Concat":
            return len(op.inputs) == 1
        case "Split":
            return len(op.outputs) == 1
        case "Dropout":
            return not _trains(draft, op) and not _mask(draft, op)
        case "Cast":
            element = draft.element_type(op.inputs[0])
            return element != 0 and element == op.attribute("to")
        case "Reshape" | "Expand" | "Flatten" | "Squeeze" | "Tile":
            return shape is not None and shape == draft.shape(op.outputs[0])
        case "Transpose":
            perm = op.attribute("perm")
            return perm is not None and list(perm) == list(range(len(perm)))
        case "Pad":
            pads = op.input(1)
            values = draft.constants[pads] if pads in draft.constants else op.attribute("pads")
            return values is not None and not np.any(values)
    return False


def _trains(draft: Draft, op: Op) -> bool:
    """Whether a Dropout is, or may be, in training mode (an input since opset 12)."""
    mode = op.input(2)
    return bool(mode) and not (mode in draft.constants and not draft.constants[mode].any())


def _mask(draft: Draft, op: Op) -> str:
    """A Dropout's second output, when somebody reads it."""
    mask = op.outputs[1] if len(op.outputs) > 1 else ""
    return mask if mask and draft.uses()[mask] else ""


def _refuse_training(draft: Draft, op: Op, path: str) -> None:
    what = "is in training mode" if _trains(draft, op) else "has a mask that is read"
    raise ModelError(
        f"{path}: the node '{op.name}' (Dropout) {what}, which is not supported: export the "
        "model for inference."
    )


def _chain(draft: Draft, op: Op) -> list[Op]:
    """A + b + c as binary operators, left to right."""
    made = []
    left = op.inputs[0]
    for place, right in enumerate(op.inputs[1:], 2):
        last = place == len(op.inputs)
        value = op.outputs[0] if last else draft.fresh(f"{op.outputs[0]}_{place}")
        kind = "Add" if op.type == "Sum" else op.type
        made.append(Op(kind, [left, right], [value], {}, list(op.names)))
        left = value
    return made


def _rename_outputs(draft: Draft) -> None:
    """Let the maker of a value have the output's name where an Identity only renames it."""
    outputs = draft.output_names
    rename: dict[str, str] = {}
    made = {o for op in draft.ops for o in op.outputs}
    kept = []
    for op in draft.ops:
        source = op.inputs[0] if op.inputs else ""
        if op.type == "Identity" and source in made and source not in outputs | set(rename):
            rename[source] = op.outputs[0]
        else:
            kept.append(op)
    draft.ops = kept
    if rename:
        for op in draft.ops:
            op.inputs = [rename.get(v, v) for v in op.inputs]
            op.outputs = [rename.get(v, v) for v in op.outputs]


def _drop_dead(draft: Draft) -> None:
    """Drop nodes that no output needs, and constants that no node reads."""
    needed = draft.output_names
    kept = []
    for op in reversed(draft.ops):
        if any(o in needed for o in op.outputs):
            needed.update(op.inputs)
            kept.append(op)
    draft.ops = kept[::-1]
    draft.constants.keep_only(needed)


def _infer(draft: Draft, path: str) -> None:
    """Shapes and types of all values, by ONNX's shape inference on a model without weights."""
    skeleton = draft.to_model(skeleton=True)
    for output in skeleton.graph.output:
        # What the file says may hold the names of sizes that are numbers by now.
        output.type.tensor_type.ClearField("shape")
    try:
        inferred = shape_inference.infer_shapes(skeleton, data_prop=True)
    except shape_inference.InferenceError as error:
        said = " ".join(str(error).split())
        raise ModelError(f"{path}: the model's shapes do not fit: {said}") from None
    graph = inferred.graph
    draft.types = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        shape = None
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            shape = tuple(d.dim_value for d in tensor.shape.dim)
        draft.types[value.name] = (tensor.elem_type, shape)
