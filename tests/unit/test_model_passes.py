"""Each clean-up pass alone: what it guarantees, and where the user's node names go."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage_engine.model import onnx_cleanup as passes
from collage_engine.model.draft import Draft
from collage_engine.support.errors import ModelError

node = helper.make_node


def draft(*nodes, shape=(1, 2, 4, 4), outputs=("y",), **constants) -> Draft:
    """A draft over an input ``x`` of float32."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return Draft(model, "m.onnx")


def types(found: Draft) -> list[str]:
    return [op.type for op in found.ops]


def test_constants_become_initializers():
    value = numpy_helper.from_array(np.float32([1, 2]))
    d = draft(node("Constant", [], ["k"], value=value), node("Add", ["x", "k"], ["y"]))
    passes.constants_to_initializers(d)
    assert types(d) == ["Add"] and d.constants["k"].tolist() == [1, 2]
    d = draft(node("Constant", [], ["k"], value_string="a"), node("Add", ["x", "k"], ["y"]))
    with pytest.raises(ModelError, match=r"^m\.onnx: the constant 'k' holds no numbers"):
        passes.constants_to_initializers(d)
