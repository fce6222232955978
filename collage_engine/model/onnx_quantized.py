"""Cleans up quantised models: every reader dequantises for itself.

Exporters write one DequantizeLinear for all readers of a value. A composite (DequantizeLinear →
operator → QuantizeLinear) then reaches into its neighbour's, and only one of them could be a
partition. With a copy for each reader composites are disjoint and hand 8-bit values to each
other; ONNX Runtime's optimiser does the same before it looks for its node units.

Padding of 8-bit values with their zero point is moved behind DequantizeLinear, where it is
padding with zeros, which a convolution takes over.
"""

from __future__ import annotations

import numpy as np

from collage_engine.model.draft import Constants, Draft, Op


def dequantize_per_reader(draft: Draft) -> None:
    """Copy each DequantizeLinear for all its readers but one, in place.

    A value that is a graph output keeps the original for that. Weights are not copied: the
    copies read the same constants.
    """
    outputs = draft.output_names
    made = {op.outputs[0]: op for op in draft.ops if _dequantizes(op)}
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


def pad_in_float(draft: Draft) -> None:
    """Turns a Pad of 8-bit values by their zero point into one by 0.0 of dequantised ones.

    Also QuantizeLinear and DequantizeLinear between a Pad by 0.0 and its reader go, where the
    values come from the very same scale: they change nothing.
    """
    uses, outputs = draft.uses(), draft.output_names
    maker = {o: op for op in draft.ops for o in op.outputs}
    gone: set[int] = set()
    for op in draft.ops:
        if not _dequantizes(op) or op.outputs[0] in outputs:
            continue
        before = maker.get(op.inputs[0])
        if before is None or before.domain or uses[op.inputs[0]] != 1:
            continue
        if before.outputs[0] in outputs:
            continue
        if before.type == "Pad" and _pads_with(before, draft.constants, op):
            # The two nodes change places: DequantizeLinear now makes what the Pad made.
            op.type, before.type = before.type, op.type
            op.attributes, before.attributes = before.attributes, op.attributes
            fill = draft.constant(f"{op.outputs[0]}_zero", np.array(0, np.float32))
            source, parameters = before.inputs[0], op.inputs[1:]
            more = before.inputs[3:]
            op.inputs = [op.inputs[0], before.inputs[1], fill, *more]
            before.inputs = [source, *parameters]
            op.names, before.names = before.names, op.names
            op.nodes, before.nodes = before.nodes, op.nodes
            draft.types.pop(before.outputs[0], None)
        elif before.type == "QuantizeLinear":
            pad = maker.get(before.inputs[0])
            if pad is None or pad.type != "Pad" or uses[before.inputs[0]] != 1:
                continue
            first = maker.get(pad.inputs[0])
            if (
                first is None
                or not _dequantizes(first)
                or not _pads_with(pad, draft.constants, None)
            ):
                continue
            if before.inputs[1:] == op.inputs[1:] == first.inputs[1:] or _same_numbers(
                draft, before, op, first
            ):
                pad.outputs = list(op.outputs)
                pad.take_in(before)
                pad.take_in(op)
                gone |= {id(before), id(op)}
    draft.ops = [op for op in draft.ops if id(op) not in gone]


def _pads_with(pad: Op, constants: Constants, reader: Op | None) -> bool:
    """Return whether a Pad by constants fills with its reader's zero point (None: with 0)."""
    if pad.attribute("mode", "constant") != "constant" or pad.input(1) not in constants:
        return False
    wanted = 0
    if reader is not None and reader.input(2):
        if reader.input(2) not in constants or constants[reader.input(2)].size != 1:
            return False
        wanted = int(constants[reader.input(2)].reshape(-1)[0])
    if not pad.input(2):
        return wanted == 0
    return pad.input(2) in constants and float(constants[pad.input(2)].reshape(-1)[0]) == wanted


def _same_numbers(draft: Draft, *ops: Op) -> bool:
    """Return whether scales and zero points are equal, whatever the constants are called."""

    def numbers(op: Op) -> list[np.ndarray] | None:
        if len(op.inputs) < 3 or any(v not in draft.constants for v in op.inputs[1:3]):
            return None
        return [draft.constants[v] for v in op.inputs[1:3]]

    found = [numbers(op) for op in ops]
    head = found[0]
    return head is not None and all(
        f is not None
        and all(
            a.dtype == b.dtype and a.size == b.size == 1 and a.reshape(-1)[0] == b.reshape(-1)[0]
            for a, b in zip(head, f, strict=True)
        )
        for f in found
    )


def _dequantizes(op: Op) -> bool:
    return op.type == "DequantizeLinear" and not op.domain
