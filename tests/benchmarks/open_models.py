"""Models of the zoo with open sizes: MobileNetV2 of any batch, BERT-Small of any sequence length.

python -m tests.benchmarks.open_models mobilenet_v2 m.onnx  # then: --dim batch=1,4,16
python -m tests.benchmarks.open_models bert_small b.onnx    # then: --dim sequence=32,128,512
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from tests import zoo
from tests.zoo.text import bert

LONGEST = 512
"""Tokens that BERT has positions for (Devlin and others, 2018)."""


def mobilenet_v2() -> ModelProto:
    """MobileNetV2 whose batch is the dimension ``batch``."""
    model = zoo.build("mobilenet_v2")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    return model


def bert_small() -> ModelProto:
    """BERT-Small whose number of tokens is the dimension ``sequence``, of at most 512."""
    model = bert(layers=4, length=LONGEST, hidden=512, heads=8, vocabulary=30522)
    graph = model.graph
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == LONGEST and value.name != graph.output[1].name:
                dim.dim_param = "sequence"
    graph.output[1].type.tensor_type.shape.dim[1].dim_value = 512
    last = graph.output[0].type.tensor_type.shape.dim[2]
    last.dim_value = 512
    del graph.value_info[:]
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Reshape":  # what was the length is taken from the input instead
            target = numpy_helper.to_array(weights[node.input[1]]).copy()
            target[:2] = 0
            weights[node.input[1]].CopyFrom(numpy_helper.from_array(target, node.input[1]))
    add = next(n for n in graph.node if any(_is_positions(weights.get(i)) for i in n.input))
    position = next(i for i in add.input if _is_positions(weights.get(i)))
    ends = [("first", 0), ("axis", 1)]
    graph.initializer.extend(
        numpy_helper.from_array(np.array([number], np.int64), f"positions.{name}")
        for name, number in ends
    )
    length = helper.make_node("Shape", ["input_ids"], ["positions.length"], start=1, end=2)
    piece = helper.make_node(
        "Slice",
        [position, "positions.first", "positions.length", "positions.axis"],
        ["positions.some"],
    )
    at = list(graph.node).index(add)
    add.input[list(add.input).index(position)] = "positions.some"
    graph.node.insert(at, piece)
    graph.node.insert(at, length)
    return model


def _is_positions(tensor: onnx.TensorProto | None) -> bool:
    return tensor is not None and list(tensor.dims) == [1, LONGEST, 512]


MODELS = {"mobilenet_v2": mobilenet_v2, "bert_small": bert_small}
"""Name → maker."""


if __name__ == "__main__":
    onnx.save(MODELS[sys.argv[1]](), sys.argv[2])
