"""Folds constants and shape computations, and drops what does nothing.

The names of a node that is dropped because another stands for it move to that one; what is folded
into a constant keeps none and is listed as folded.

Exporters write an If where a size decides (torch: ``squeeze`` of an axis that may be 1). With all
sizes known its condition is a constant after clean-up, and the branch taken replaces it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from collage_engine.model.draft import Draft, Op, op_from
from collage_engine.model.onnx_checks import RANDOM
from collage_engine.model.onnx_file import tensor_array
from collage_engine.support.errors import ModelError

Values = list[Any]
"""The values of a node's inputs; None for an input that is absent."""


def _evaluated(op: Op, values: Values, opset: int) -> Values | None:
    """Return the outputs of a node for these inputs (None for an absent one).

    None where the reference evaluator cannot do it, or makes what is no tensor.
    """
    from onnx.reference import ReferenceEvaluator

    if op.type == "Identity" and not op.domain:
        return values  # weights of any size, which the evaluator would copy
    if op.domain:
        return None
    feeds = {n: v for n, v in zip(op.inputs, values, strict=True) if n}
    graph = helper.make_graph(
        [op.to_proto()],
        "one",
        list(map(helper.make_empty_tensor_value_info, feeds)),
        [helper.make_empty_tensor_value_info(o) for o in op.outputs if o],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        outputs = list(ReferenceEvaluator(model).run(None, feeds))
    except Exception:  # the evaluator raises whatever numpy or its author chose
        return None
    if not all(isinstance(output, (np.ndarray, np.generic)) for output in outputs):
        return None
    results = iter(outputs)
    # An absent optional output keeps its place.
    return [np.asarray(next(results)) if o else np.empty(0) for o in op.outputs]


_NEVER_FOLDED = RANDOM | {"DequantizeLinear", "If", "Loop", "Scan"}
"""Operators that stay although their inputs are constants: results that differ from call to call;
int8 weights, which toolchains would lose; an If, whose branch is taken instead (``taken_branch``);
loops, whose values from outside are no inputs of theirs."""
_LARGEST_GROWTH = 64 << 20
"""Bytes by which a folded result may exceed what it is computed from. Chosen: an exported model
should not grow by its ``Expand`` nodes."""


def constants_to_initializers(draft: Draft) -> None:
    """Turn Constant nodes into initializers.

    Raises:
        ModelError: A constant has no value, or several.
    """
    kept = []
    for op in draft.ops:
        if op.type != "Constant" or op.domain:
            kept.append(op)
            continue
        value, array = op.outputs[0], _constant_value(op, draft.path)
        if array.dtype == object and value in draft.output_names:
            # Relax has no constants of texts: one that leaves the model needs an operator.
            op.inputs, op.type, op.attributes = [draft.constant(value, array)], "Identity", {}
            kept.append(op)
        else:
            draft.constants[value] = array
    draft.ops = kept


def _constant_value(op: Op, path: str) -> np.ndarray:
    """Return the value of a Constant, none of which is sparse any more (``write_plainly``).

    Raises:
        ModelError: It has no value, or several.
    """
    if len(op.attributes) != 1:
        raise ModelError(
            f"{path}: the constant '{op.name}' needs one value and has {len(op.attributes)}."
        )
    (name,) = op.attributes
    value = op.attribute(name)
    if name == "value":
        return tensor_array(value, f"{path}: the constant '{op.name}'")
    if name == "value_strings":
        value = [text.decode() for text in value]
    kind = {"value_float": np.float32, "value_int": np.int64, "value_string": object}
    return np.array(value, kind[name.removesuffix("s")])


def fold(draft: Draft) -> None:
    """Fold constants, drop what does nothing, split Sum: one pass in topological order.

    Raises:
        ModelError: A Dropout is in training mode.
    """
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
        if op.type == "Dropout" and not op.domain and _trains(draft, op):
            raise ModelError(
                f"{draft.path}: the node '{op.name}' (Dropout) is in training mode, which is not "
                "supported: export the model for inference."
            )
        if op.type in ("Sum", "Max", "Min") and not op.domain and len(op.inputs) > 2:
            kept += _chain(draft, op)
            continue
        elif op.type == "Sum" and not op.domain:
            op.type, op.part_of = "Add", op.onnx_type
        kept.append(op)
    draft.ops = kept
    _rename_outputs(draft)


def _fold(draft: Draft, op: Op) -> bool:
    constants = draft.constants
    results: Values | None
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
        results = _evaluated(op, [constants[v] if v else None for v in op.inputs], draft.opset)
        if results is None:
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
    """Return whether folding would blow a small constant up to a big one."""
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
            mask_is_read = any(draft.uses()[mask] for mask in op.outputs[1:] if mask)
            return not _trains(draft, op) and not mask_is_read
        case "Cast":
            element = draft.element_type(op.inputs[0])
            return element != 0 and element == op.attribute("to")
        case "Reshape" | "Expand" | "Flatten" | "Squeeze" | "Tile":
            return shape is not None and shape == draft.shape(op.outputs[0])
        case "Transpose":
            perm = op.attribute("perm")
            fits = shape is not None and perm is not None and len(perm) == len(shape)
            return fits and list(perm) == list(range(len(perm)))
        case "Pad":
            pads = op.input(1)
            values = draft.constants[pads] if pads in draft.constants else op.attribute("pads")
            return values is not None and not np.any(values)
    return False


def _trains(draft: Draft, op: Op) -> bool:
    """Return whether a Dropout is, or may be, in training mode (an input since opset 12)."""
    mode = op.input(2)
    return bool(mode) and not (mode in draft.constants and not draft.constants[mode].any())


def _chain(draft: Draft, op: Op) -> list[Op]:
    """Return a + b + c as binary operators, left to right."""
    made = []
    left = op.inputs[0]
    for number, right in enumerate(op.inputs[1:], 2):
        last = number == len(op.inputs)
        value = op.outputs[0] if last else draft.fresh(f"{op.outputs[0]}_{number}")
        kind = "Add" if op.type == "Sum" else op.type
        made.append(op.part(kind, [left, right], [value]))
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
        if (
            op.type == "Identity"
            and source in made
            and source not in outputs
            and source not in rename
        ):
            rename[source] = op.outputs[0]
        else:
            kept.append(op)
    draft.ops = kept
    if rename:
        for op in draft.ops:
            op.inputs = [rename.get(v, v) for v in op.inputs]
            op.outputs = [rename.get(v, v) for v in op.outputs]


def taken_branch(draft: Draft, op: Op) -> list[Op] | None:
    """Return the operators that an If becomes whose condition is a constant.

    It is None where it is not.
    """
    if op.inputs[0] not in draft.constants or draft.constants[op.inputs[0]].size != 1:
        return None
    taken = bool(draft.constants[op.inputs[0]].reshape(-1)[0])
    proto = op.to_proto()
    branch = next(
        helper.get_attribute_value(a)
        for a in proto.attribute
        if a.name == ("then_branch" if taken else "else_branch")
    )
    rename = {}
    for tensor in branch.initializer:
        rename[tensor.name] = draft.fresh(f"{op.name}_{tensor.name}")
        draft.constants[rename[tensor.name]] = tensor_array(tensor, f"'{tensor.name}'")
    for node in branch.node:
        for value in node.output:
            if value:
                rename[value] = draft.fresh(f"{op.name}_{value}")
    made = []
    for node in branch.node:
        new = op_from(node, op.names)
        new.inputs = [rename.get(v, v) for v in new.inputs]
        new.outputs = [rename.get(v, v) for v in new.outputs]
        made.append(new)
    for inner, outer in zip(branch.output, op.outputs, strict=True):
        if outer:
            source = rename.get(inner.name, inner.name)
            made.append(Op("Identity", [source], [outer], {}, list(op.names)))
    return made
