"""Each clean-up pass alone: what it guarantees, and where the user's node names go."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage_engine.model import onnx_cleanup as passes
from collage_engine.model.draft import Draft
from collage_engine.records.errors import ModelError

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
    passes.CONSTANTS.run(d)
    assert types(d) == ["Add"] and d.constants["k"].tolist() == [1, 2]
    d = draft(node("Constant", [], ["k"], value_string="a"), node("Add", ["x", "k"], ["y"]))
    with pytest.raises(ModelError, match=r"^m\.onnx: the constant 'k' holds no numbers"):
        passes.CONSTANTS.run(d)


def test_fold_computes_constants_and_drops_what_does_nothing():
    d = draft(
        node("Mul", ["a", "b"], ["ab"], name="product"),
        node("Identity", ["x"], ["same"], name="renames"),
        node("Sum", ["same", "ab", "x"], ["y"], name="sum"),
        a=np.float32(2),
        b=np.float32(3),
    )
    passes.FOLD.run(d)
    assert types(d) == ["Add", "Add"] and d.constants["ab"] == 6
    assert d.ops[0].inputs == ["x", "ab"] and d.ops[1].outputs == ["y"]
    assert [op.names for op in d.ops] == [["sum"], ["sum"]]
    assert d.constants["a"] == 2, "dropping what nobody reads is another pass"
    passes.DROP_DEAD.run(d)
    assert d.constants.names() == ["ab"]


def test_fold_of_a_shape_needs_the_types_that_infer_finds():
    d = draft(
        node("Relu", ["x"], ["r"]), node("Shape", ["r"], ["s"]), node("Reshape", ["r", "s"], ["y"])
    )
    passes.FOLD.run(d)
    assert types(d) == ["Relu", "Shape", "Reshape"]
    passes.INFER.run(d)
    assert d.shape("r") == (1, 2, 4, 4)
    passes.FOLD.run(d)
    assert d.constants["s"].tolist() == [1, 2, 4, 4]
    assert types(d) == ["Relu"], "a reshape to the same shape does nothing"
    assert d.ops[0].outputs == ["y"]


def test_a_batch_normalization_becomes_part_of_its_convolution():
    rng = np.random.default_rng(0)
    d = draft(
        node("Conv", ["x", "w"], ["c"], name="conv", kernel_shape=[1, 1]),
        node("BatchNormalization", ["c", "g", "b", "m", "v"], ["y"], name="bn"),
        w=rng.standard_normal((3, 2, 1, 1)).astype(np.float32),
        g=np.float32([1, 2, 3]),
        b=np.float32([0, 1, 0]),
        m=np.float32([0, 0, 1]),
        v=np.float32([1, 1, 4]),
    )
    before = d.constants["w"].copy()
    passes.INFER.run(d)
    passes.AFFINE.run(d)
    (conv,) = d.ops
    assert conv.type == "Conv" and conv.names == ["conv", "bn"] and conv.outputs == ["y"]
    scale = np.float32([1, 2, 3]) / np.sqrt(np.float32([1, 1, 4]) + np.float32(1e-5))
    found = d.constants[conv.inputs[1]]
    np.testing.assert_allclose(found, before * scale[:, None, None, None], rtol=1e-6)
    np.testing.assert_allclose(
        d.constants[conv.inputs[2]],
        np.float32([0, 1, 0]) - np.float32([0, 0, 1]) * scale,
        rtol=1e-5,
    )


def test_pads_are_explicit_and_part_of_their_convolution():
    d = draft(
        node("Pad", ["x", "around"], ["p"], name="pad"),
        node("Conv", ["p", "w"], ["y"], name="conv", auto_pad="SAME_UPPER", kernel_shape=[3, 3]),
        around=np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
        w=np.zeros((2, 2, 3, 3), np.float32),
    )
    passes.INFER.run(d)
    passes.PADS_INTO_CONVOLUTIONS.run(d)
    assert types(d) == ["Pad", "Conv"], "it waits for explicit pads"
    passes.EXPLICIT_PADS.run(d)
    assert d.ops[1].attribute("pads") == [1, 1, 1, 1] and "auto_pad" not in d.ops[1].attributes
    passes.PADS_INTO_CONVOLUTIONS.run(d)
    (conv,) = d.ops
    assert conv.attribute("pads") == [2, 2, 2, 2] and conv.names == ["conv", "pad"]


def test_every_reader_dequantises_for_itself():
    d = draft(
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["f"], name="dequantize"),
        node("Relu", ["f"], ["r"]),
        node("Add", ["f", "r"], ["y"]),
        s=np.float32(0.1),
        z=np.int8(0),
    )
    passes.INFER.run(d)
    passes.DEQUANTIZE_PER_READER.run(d)
    dequantized = [op for op in d.ops if op.type == "DequantizeLinear"]
    assert len(dequantized) == 2
    uses = d.uses()
    assert [uses[op.outputs[0]] for op in dequantized] == [1, 1]
    assert all(op.names == ["dequantize"] for op in dequantized)


def test_every_pass_has_a_name_and_says_what_it_guarantees():
    known = [p for p in vars(passes).values() if isinstance(p, passes.CleanUpPass)]
    assert len({p.name for p in known}) == len(known) >= 12
    assert all(p.guarantees.endswith(".") for p in known)
    assert set(map(id, passes.FINAL_PASSES)) <= set(map(id, known))
