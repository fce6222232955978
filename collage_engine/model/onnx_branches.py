"""Replaces an If whose condition is known by the branch that is taken.

Exporters write an If where a size decides (torch: ``squeeze`` of an axis that may be 1). With all
sizes known its condition is a constant after clean-up, and the branch taken replaces it.
"""

from __future__ import annotations

from onnx import helper

from collage_engine.model.draft import Draft, Op, op_from


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
