"""Cleans up quantised models: every reader dequantises for itself.

Exporters write one DequantizeLinear for all readers of a value. A composite (DequantizeLinear →
operator → QuantizeLinear) then reaches into its neighbour's, and only one of them could be a
partition. With a copy for each reader composites are disjoint and hand 8-bit values to each
other; ONNX Runtime's optimiser does the same before it looks for its node units.
"""

from __future__ import annotations

from collage_engine.model.draft import Draft, Op


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


def _dequantizes(op: Op) -> bool:
    return op.type == "DequantizeLinear" and not op.domain
