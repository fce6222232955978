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


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"value": numpy_helper.from_array(np.float32([1, 2]))}, np.float32([1, 2])),
        ({"value_float": 0.5}, np.float32(0.5)),
        ({"value_floats": [0.5, 2]}, np.float32([0.5, 2])),
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3]}, np.int64([3])),
        ({"value_string": "é"}, np.array("é", object)),
        ({"value_strings": ["é", ""]}, np.array(["é", ""], object)),
    ],
)
def test_constants_become_initializers(value: dict, wanted: np.ndarray) -> None:
    d = draft(node("Constant", [], ["k"], **value), node("Add", ["x", "k"], ["y"]))
    passes.constants_to_initializers(d)
    assert types(d) == ["Add"] and d.constants["k"].dtype == wanted.dtype
    np.testing.assert_array_equal(d.constants["k"], wanted)


@pytest.mark.parametrize("values", [{}, {"value_int": 1, "value_float": 1.0}])
def test_a_constant_has_one_value(values: dict) -> None:
    d = draft(node("Constant", [], ["k"], **values), node("Add", ["x", "k"], ["y"]))
    with pytest.raises(ModelError, match=r"^m\.onnx: the constant 'k' needs one value and has"):
        passes.constants_to_initializers(d)
