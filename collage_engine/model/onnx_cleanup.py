"""Cleans an ONNX model up with numpy, so that every toolchain meets the same plain graph.

Constants become initializers, constant sub-graphs and shape computations are folded,
Dropout and Identity go, Sum becomes Add, BatchNormalization is folded into its convolution.
Each node of the user's file is accounted for: it lives on, is absorbed by a named operator,
or is listed as folded.

Exporters write one DequantizeLinear for all readers of a value. A composite (DequantizeLinear →
operator → QuantizeLinear) then reaches into its neighbour's, and only one of them could be a
partition. With a copy for each reader composites are disjoint and hand 8-bit values to each
other; ONNX Runtime's optimiser does the same before it looks for its node units.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

from onnx import ModelProto, helper, inliner

from collage_engine.model import onnx_affine, onnx_expand
from collage_engine.model.draft import Draft, Op, node_name
from collage_engine.model.onnx_checks import check_operators
from collage_engine.model.onnx_fold import constants_to_initializers, fold
from collage_engine.model.onnx_outer_values import branches, with_branches
from collage_engine.model.onnx_pads import explicit_pads, pads_into_convolutions
from collage_engine.model.onnx_standard import check_inference, check_sizes, infer_loosely
from collage_engine.records.graph import OPEN_SIZE
from collage_engine.support.errors import ModelError


def dequantize_per_reader(draft: Draft) -> None:
    """Copy each DequantizeLinear for all its readers but one, in place.

    A value that is a graph output keeps the original for that. Weights are not copied: the
    copies read the same constants.
    """
    outputs = draft.output_names
    dequantize = (op for op in draft.ops if op.type == "DequantizeLinear" and not op.domain)
    made = {op.outputs[0]: op for op in dequantize}
    first: dict[str, Op] = {}
    copies: dict[str, list[Op]] = {}
    for op in draft.ops:
        for value in dict.fromkeys(op.inputs):
            source = made.get(value)
            if source is None:
                continue
            if value not in outputs and value not in first:
                first[value] = op
                continue
            fresh = draft.fresh(f"{value}_copy")
            copy = Op(source.type, list(source.inputs), [fresh], dict(source.attributes))
            copy.names, copy.scope = list(source.names), source.scope
            copies.setdefault(value, []).append(copy)
            if value in draft.types:
                draft.types[fresh] = draft.types[value]
            op.inputs = [fresh if v == value else v for v in op.inputs]
    if copies:
        draft.ops = [each for op in draft.ops for each in (op, *copies.get(op.outputs[0], ()))]


MOST_NODES = 200_000
"""Nodes of a model after its local functions are written out, at most. Chosen: the largest exports
with functions known (language models, node by node) have a quarter of it."""


@dataclass(frozen=True)
class CleanModel:
    """A cleaned model, and where the user's nodes went."""

    onnx: ModelProto
    ops: dict[str, Op]
    """The operators of the draft that the nodes are, by their first outputs."""
    draft: Draft
    """What is known of its values: types, partial shapes, and which are no tensors."""
    order: tuple[str, ...]
    """Names of all of the user's nodes, in file order."""


def drop_dead(draft: Draft) -> None:
    """Drop nodes that no output needs, and constants that no node reads."""
    needed = set(draft.output_names)
    kept = []
    for op in reversed(draft.ops):
        if any(o in needed for o in op.outputs):
            needed.update(op.inputs)
            kept.append(op)
    draft.ops = kept[::-1]
    for name in draft.constants.tensors.keys() - needed:
        del draft.constants.tensors[name]


def infer_types(draft: Draft) -> None:
    """Infers shapes and types of all values, by ONNX on a model without weights.

    Raises:
        ModelError: They contradict each other.
    """
    _take_types(draft, infer_loosely(_undeclared(draft), draft.path))


def check_types(draft: Draft) -> None:
    """Infers shapes and types as ``infer_types`` does, and insists that every node fits its inputs.

    Raises:
        ModelError: A node does not; or a value has a negative size, or fits no memory.
    """
    _take_types(draft, check_inference(_undeclared(draft), draft.path))
    check_sizes(draft)


def _undeclared(draft: Draft) -> ModelProto:
    """Return the draft without weights and without what its file says about sizes of results."""
    skeleton = draft.to_model(skeleton=True)
    within = list(branches(with_branches(skeleton.graph.node)))
    for branch in within:
        del branch.value_info[:]
    for output in (o for graph in (skeleton.graph, *within) for o in graph.output):
        # It may hold names of sizes that are numbers by now. Runtimes overlook what is wrong in it,
        # and ONNX's strict inference gives up.
        if output.type.WhichOneof("value") == "tensor_type":
            output.type.tensor_type.ClearField("shape")
    return skeleton


def _take_types(draft: Draft, inferred: ModelProto) -> None:
    graph = inferred.graph
    draft.types, draft.partial, draft.structured = {}, {}, set()
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.WhichOneof("value") not in ("tensor_type", None):
            draft.structured.add(value.name)
            continue
        tensor = value.type.tensor_type
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(
                d.dim_value if d.HasField("dim_value") else OPEN_SIZE for d in tensor.shape.dim
            )
        if shape is None or OPEN_SIZE in shape:
            draft.partial[value.name] = shape
            shape = None
        draft.types[value.name] = (tensor.elem_type, shape)


FINAL_PASSES: tuple[Callable[[Draft], object], ...] = (
    check_types,
    onnx_affine.fold_affine,
    dequantize_per_reader,
    drop_dead,
    infer_types,
    explicit_pads,
    pads_into_convolutions,
)
"""What changes the draft once, in this order, when nothing is left to fold or to expand. After each
of them, and of those before, every node of the user's is named by an operator or by none any more,
and the outputs compute what they did."""


def clean_up(model: ModelProto, path: str = "") -> CleanModel:
    """Clean a checked model with known input sizes, which is changed in place."""
    order = tuple(dict.fromkeys(node_name(n) for n in model.graph.node))
    draft = Draft(without_functions(model), path)
    check_operators(draft.ops, path)  # those that were within functions, too
    constants_to_initializers(draft)
    _fold_to_fixed_point(draft)
    for change in FINAL_PASSES:
        change(draft)
    clean = draft.to_model()
    clean.metadata_props.extend(model.metadata_props)  # clients read an alphabet or labels there
    for name, (element, shape) in draft.types.items():
        if shape is not None and element and name not in draft.output_names:
            clean.graph.value_info.append(helper.make_tensor_value_info(name, element, shape))
    return CleanModel(
        onnx=clean,
        ops={next((o for o in op.outputs if o), ""): op for op in draft.ops},
        draft=draft,
        order=order,
    )


def _fold_to_fixed_point(draft: Draft) -> None:
    """Fold, infer and expand until nothing changes: each makes work for the others."""
    while True:
        before = len(draft.ops), len(draft.types)
        fold(draft)
        drop_dead(draft)
        infer_types(draft)
        if onnx_expand.expand(draft):
            check_operators(draft.ops, draft.path)
            constants_to_initializers(draft)
            infer_types(draft)
            continue
        shapes_wait = any(op.type in ("Shape", "Size") for op in draft.ops)
        if not shapes_wait or (len(draft.ops), len(draft.types)) == before:
            break


def without_functions(model: ModelProto) -> ModelProto:
    """Return the model, or a copy without local functions; what replaces a call has its name.

    The inliner of ONNX forgets the values that a function declares for attributes which a call
    leaves out. They are therefore written into the calls first, and calls are replaced from the
    outside inwards: whether a call within a function leaves an attribute out can depend on the
    attributes of the call around it. What one round makes is in the graph when the next begins.

    Raises:
        ModelError: A file of kilobytes can hold functions that call each other so often that their
            nodes fit no memory ("billion laughs").
    """
    if not model.functions:
        return model
    flat = deepcopy(model)
    _name_overloads(flat)
    _agree_on_opsets(flat)
    for node in flat.graph.node:
        node.name = node_name(node)
    while flat.functions:
        within = {(n.domain, n.op_type) for f in flat.functions for n in with_branches(f.node)}
        outer = {(f.domain, f.name): f for f in flat.functions if (f.domain, f.name) not in within}
        if not outer:  # functions that call each other, and that the graph does not call
            del flat.functions[:]
            break
        for node in with_branches(flat.graph.node):
            called = outer.get((node.domain, node.op_type))
            given = {attribute.name for attribute in node.attribute}
            if called is not None:
                node.attribute.extend(a for a in called.attribute_proto if a.name not in given)
        flat = _without_calls(flat, list(outer))
        if len(flat.graph.node) > MOST_NODES:
            raise ModelError(
                f"it has more than {MOST_NODES} nodes when its functions are written out"
            )
    return flat


def _without_calls(model: ModelProto, functions: list[tuple[str, str]]) -> ModelProto:
    """Return the model with the calls of some functions replaced, and without the functions."""
    calls: dict[str, str] = {}
    kept: dict[str, str] = {}
    for node in model.graph.node:
        into = calls if (node.domain, node.op_type) in functions else kept
        into.update(dict.fromkeys(node.output, node.name))
    flat = inliner.inline_selected_functions(model, functions)
    # The nodes of one call stand together and end with the one that makes its last output.
    owner = ""
    for node in reversed(flat.graph.node):
        owner = next((calls[o] for o in node.output if o in calls), owner)
        node.name = next((kept[o] for o in node.output if o in kept), owner)
    left = [f for f in flat.functions if (f.domain, f.name) not in functions]
    del flat.functions[:]
    flat.functions.extend(left)
    return flat


def _agree_on_opsets(model: ModelProto) -> None:
    """Give functions the model's versions of operator sets, and the model those it lacks, in place.

    The inliner asks for equal ones. The checker has made sure that the operators of a function mean
    the same in both versions.
    """
    versions = {each.domain: each.version for each in model.opset_import}
    for function in model.functions:
        for each in function.opset_import:
            if each.domain not in versions:
                versions[each.domain] = each.version
                model.opset_import.add().CopyFrom(each)
            each.version = versions[each.domain]


def _name_overloads(model: ModelProto) -> None:
    """Give functions that differ in their overload alone names of their own, in place."""
    overloads = {(f.domain, f.name, f.overload) for f in model.functions if f.overload}
    bodies = [node for f in model.functions for node in with_branches(f.node)]
    for node in (*with_branches(model.graph.node), *bodies):
        if (node.domain, node.op_type, node.overload) in overloads:
            node.op_type, node.overload = f"{node.op_type}:{node.overload}", ""
    for function in model.functions:
        if function.overload:
            function.name, function.overload = f"{function.name}:{function.overload}", ""
