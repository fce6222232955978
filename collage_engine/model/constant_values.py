"""Evaluates ONNX nodes whose inputs are all constant, by ONNX's reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from collage_engine.model.draft import Op

Values = list[Any]
"""The values of a node's inputs; None for an input that is absent."""


class NotFoldable(Exception):
    """The node has constant inputs but cannot be evaluated; it stays in the graph."""


def evaluate(op: Op, values: Values, opset: int) -> Values:
    """Return the outputs of a node for these inputs (None for an absent one).

    Raises ``NotFoldable`` when the reference evaluator cannot do it.
    """
    if op.type == "Identity" and not op.domain:
        return values  # weights of any size, which the evaluator would copy
    try:
        return _reference(op, values, opset)
    except NotFoldable:
        raise
    except Exception as error:  # the evaluator raises whatever numpy or its author chose
        raise NotFoldable(f"{op.type}: {error}") from error


def _reference(op: Op, values: Values, opset: int) -> Values:
    from onnx.reference import ReferenceEvaluator

    if op.domain:
        raise NotFoldable(f"{op.domain}.{op.type}")
    inputs = [(n, v) for n, v in zip(op.inputs, values, strict=True) if n]
    graph = helper.make_graph(
        [op.to_proto()],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in dict(inputs).items()
        ],
        [helper.make_empty_tensor_value_info(o) for o in op.outputs if o],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    found = list(ReferenceEvaluator(model).run(None, dict(inputs)))
    if not all(isinstance(each, (np.ndarray, np.generic)) for each in found):
        raise NotFoldable(f"{op.type} makes a sequence or an optional value")
    results = iter(found)
    # An absent optional output keeps its place.
    return [np.asarray(next(results)) if o else np.empty(0) for o in op.outputs]
