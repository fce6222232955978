"""If nodes in a draft: what their branches read from outside, and taking the branch that is known.

Exporters write an If where a size decides (torch: ``squeeze`` of an axis that may be 1). With all
sizes known its condition is a constant after clean-up, and the branch taken replaces it. Until
then a draft lists what the branches read as further inputs of the node, so that these values are
neither dropped nor lost when they are renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from onnx import AttributeProto, GraphProto, NodeProto, helper

if TYPE_CHECKING:
    from collage_engine.model.draft import Draft, Op


def outer_values(node: NodeProto) -> tuple[str, ...]:
    """Values that a node's branches read and do not make, in order of their first use."""
    found: dict[str, None] = {}
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found |= dict.fromkeys(_free(attribute.g))
    return tuple(found)


def _free(graph: GraphProto) -> list[str]:
    own = {i.name for i in graph.input} | {i.name for i in graph.initializer} | {""}
    read: list[str] = []
    for node in graph.node:
        read += [v for v in (*node.input, *outer_values(node)) if v not in own]
        own.update(node.output)
    return read + [o.name for o in graph.output if o.name not in own]


def with_outer_values(attribute: AttributeProto, names: Mapping[str, str]) -> AttributeProto:
    """The attribute, where it is a branch with the values from outside going by other names."""
    if not attribute.HasField("g") or all(old == new for old, new in names.items()):
        return attribute
    copy = AttributeProto()
    copy.CopyFrom(attribute)
    _rename(copy.g, names)
    return copy


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    own = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    own.update(o for node in graph.node for o in node.output)
    names = {old: new for old, new in names.items() if old not in own}
    for node in graph.node:
        for place, value in enumerate(node.input):
            node.input[place] = names.get(value, value)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)
    for output in graph.output:
        output.name = names.get(output.name, output.name)


def taken_branch(draft: Draft, op: Op) -> list[Op] | None:
    """The operators that an If becomes whose condition is a constant; None where it is not."""
    from collage_engine.model.draft import Op, op_from

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
        draft.constants.add(tensor, rename[tensor.name])
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
