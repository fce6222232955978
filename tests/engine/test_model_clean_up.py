"""What clean-up and import do to single things, and the nodes they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from collage_engine.model.importer import import_onnx
from collage_engine.records.graph import Node
from collage_engine.support.errors import ModelError
from tests import zoo
from tests.support.model_runs import (
    check_accounting,
    check_numbers,
    relative_error,
    run_onnx,
    run_relax,
)
from tests.support.written import written
from tests.zoo.net import Net


@pytest.mark.parametrize(
    "call, said",
    [
        ("com.acme.Det(x)", r"operator Det of com.acme \(node 'culprit'\) cannot be imported"),
        ("com.acme.FusedGelu(x)", r"operator FusedGelu of com.acme \(node 'culprit'\)"),
        ("MaxPool<kernel_shape=[9,9,9,9]>(x)", r"op_type:MaxPool, node name: culprit"),
    ],
)
def test_operators_relax_cannot_import_are_named(
    call: str, said: str, capfd: pytest.CaptureFixture
) -> None:
    text = f"(float[2,2] x) => (float[2,2] y) {{ [culprit] y = {call} }}"
    model = written(text, opset=13, more='"com.acme": 1')
    with pytest.raises(ModelError, match=said) as error:
        import_onnx(model, "m.onnx")
    assert "\n" not in str(error.value) and str(error.value).startswith("m.onnx: ")
    import gc

    del error
    gc.collect()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("outputs", "kept"), [("(y)", "nn.layer_norm"), ("(y, mean)", "onnx:LayerNormalization")]
)
def test_a_second_output_that_the_importer_would_invent_leaves_the_operator_as_it_is(
    outputs: str, kept: str
) -> None:
    text = f"(float[2,8] x) => {outputs} {{ y, mean = LayerNormalization(x, g, g) }}"
    graph = import_onnx(written(text, {"g": np.ones(8, np.float32)})).graph
    assert graph.nodes[0].op == kept


@pytest.mark.parametrize("size", [1, 4])
def test_an_if_that_sizes_decide_becomes_the_branch_that_is_taken(size: int) -> None:
    """As torch writes ``squeeze``: an axis may go if it is 1; branches read values from outside."""
    model = written(
        f"""(float[{size},3] x) => (float[] z) {{
            [same] same = Identity(x)
            [relu] r = Relu(same)
            [shape] shape = Shape(same)
            [gather] axis = Gather(shape, first)
            [equal] one = Equal(axis, one_)
            [choice] y = If(one) <
                then_branch = g1 () => (n) {{
                    q = Reshape(r, flat)
                    [inner_condition] no = Not(one)
                    [nested] n = If(no) <
                        then_branch = g2 () => (an) {{ an = Neg(q) }},
                        else_branch = g3 () => (bn) <float[1] offset = {{0.5}}> {{
                            bn = Add(q, offset)
                        }}
                    >
                }},
                else_branch = g4 () => (e) {{ e = Identity(same) }}
            >
            [last] z = Sigmoid(y)
        }}""",
        {"first": np.array(0), "one_": np.array(1), "flat": np.array([-1])},
        opset=17,
    )
    imported = import_onnx(model)
    lived = [n.onnx_nodes for n in imported.graph.nodes]
    assert [names[0] for names in lived] == (
        ["relu", "choice", "choice", "last"] if size == 1 else ["last"]
    )
    check_numbers(model, imported, 1e-6)
    check_accounting(model, imported)


def test_what_the_branch_that_is_taken_hides_has_an_open_size() -> None:
    branch = "() => (b) { [inside] b = NonZero(x) }"
    model = import_onnx(
        written(
            f"""(float[2] x) => (int64[] y) {{
                c = Constant<value = bool {{1}}>()
                [choice] y = If(c) <then_branch = g1 {branch}, else_branch = g2 {branch}>
            }}""",
            opset=17,
        ),
        "m.onnx",
    )
    (node,) = (model.graph.nodes[i] for i in model.graph.operators)
    assert node.op == "onnx:NonZero" and node.onnx_nodes == ("choice",)
    assert str(model.outputs[0][1]) == "int64[1,?]"


@pytest.mark.parametrize("declared", ["nothing", "branches", "values", "body"])
def test_what_a_loops_branches_declare_of_their_values_is_not_believed(declared: str) -> None:
    """As PaddlePaddle writes a table's structure: ranks of the one branch stand in the other."""
    model = written(
        """(float[4,3] x, int64 steps) => (float[n,m] y) {
            go = Constant<value = bool {1}>()
            last, largest = Loop(steps, go, x) <
              body = b (int64 i, bool c, float[4,3] s) => (d, t, h) {
                d = Identity(c)
                zero = Constant<value_int=0>()
                first = Equal(i, zero)
                v = If(first) <
                    then_branch = g1 () => (a) { a = ReduceSum<keepdims=0>(s, one) },
                    else_branch = g2 () => (b) { b = ReduceSum<keepdims=1>(s, one) }
                >
                m = ReduceMax<keepdims=0>(v)
                t = Add(s, m)
                h = Reshape(m, one)
            }>
            y = Slice(largest, start, end)
        }""",
        {"one": np.array([1]), "start": np.array([0]), "end": np.array([2])},
        opset=17,
    )
    body = next(a.g for n in model.graph.node for a in n.attribute if a.name == "body")
    choice = next(n for n in body.node if n.op_type == "If")
    for branch, wrong in zip(choice.attribute, ([4, 1], [4]), strict=True):
        value = helper.make_tensor_value_info(branch.g.output[0].name, TensorProto.FLOAT, wrong)
        if declared == "branches":
            branch.g.output[0].CopyFrom(value)
        elif declared == "values":
            branch.g.value_info.append(value)
    if declared == "body":
        body.output[2].CopyFrom(helper.make_tensor_value_info("h", TensorProto.FLOAT, [4, 4]))
    imported = import_onnx(model)
    assert imported.outputs[0][1].is_open
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    largest = [x.sum(1).max()]
    largest.append((x + largest[0]).sum(1).max())
    for steps in (0, 1, 3):
        (y,) = run_onnx(imported.onnx, {"x": x, "steps": np.array(steps)})
        np.testing.assert_allclose(y.ravel(), largest[:steps])


def test_an_operator_without_inference_says_nothing_against_its_readers() -> None:
    model = written(
        """(float[4,3] x) => (y) {
            s = ai.onnx.ml.Scaler<offset=[1.0], scale=[2.0]>(x)
            y = Relu(s)
        }""",
        opset=17,
        more='"ai.onnx.ml": 3',
    )
    x = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    (y,) = run_onnx(import_onnx(model, evaluate=run_onnx).onnx, {"x": x})
    np.testing.assert_array_equal(y, np.maximum((x - 1) * 2, 0))


def test_operators_of_no_operator_set_are_refused() -> None:
    model = written("(float[4] x) => (y) { y = Relu(x) }")
    model.opset_import[0].domain = "com.microsoft"
    with pytest.raises(ModelError, match="does not say of which operator set"):
        import_onnx(model)


def test_quantized_operators_become_dequantize_float_quantize() -> None:
    random = np.random.default_rng(0)
    constants = {
        "w": random.integers(-9, 9, (4, 3, 3, 3)).astype(np.int8),
        "t": random.integers(0, 255, (4, 5)).astype(np.uint8),
        "b": np.arange(4, dtype=np.int32),
        "scales": np.full(4, 0.1, np.float32),
        "zeros": np.zeros(4, np.int8),
        "s": np.float32(0.05),
        "z": np.uint8(100),
    }
    model = written(
        """(uint8[1,3,6,6] x) => (uint8[1,4,4,5] y) {
            c = QLinearConv(x, s, z, w, scales, zeros, s, z, b)
            y = QLinearMatMul(c, s, z, t, s, z, s, z)
        }""",
        constants,
        opset=13,
    )
    imported = import_onnx(model)
    check_accounting(model, imported)
    inputs = imported.random_inputs(0)
    given, wanted = run_onnx(imported.onnx, inputs)[0], run_onnx(model, inputs)[0]
    assert np.abs(given.astype(int) - wanted.astype(int)).max() <= 1


def test_operators_know_the_node_of_the_file_of_which_they_are_a_part() -> None:
    net = Net("nodes", opset=20)
    x = net.input("x", [1, 4, 8, 8])
    branch = net.op("Conv", x, net.weight(4, 4, 3, 3), net.weight(4), pads=[1, 1, 1, 1])
    scale = [net.const(np.full(4, v, np.float32)) for v in (1.5, 0.5, 0.1, 2.0)]
    normed = net.op("BatchNormalization", branch, *scale)
    swished = net.op("HardSwish", normed)
    codes = net.op("QuantizeLinear", swished, net.const(np.float32(0.1)), net.const(np.int8(0)))
    floats = net.op("DequantizeLinear", codes, net.const(np.float32(0.1)), net.const(np.int8(0)))
    for value in (net.op("GlobalAveragePool", floats), net.op("Sum", floats, x, x)):
        net.output(value)
    imported = import_onnx(net.model(), "nodes")
    parts: dict[int, list[Node]] = {}
    for call in imported.graph.nodes:
        parts.setdefault(call.onnx_node, []).append(call)
    types = [calls[0].onnx_type for calls in parts.values()]
    last = ["DequantizeLinear", "GlobalAveragePool", "DequantizeLinear", "Sum"]
    assert types == ["Conv", "HardSwish", "QuantizeLinear", *last], (
        "each reader has a DequantizeLinear of its own, which is a node of its own"
    )
    assert all(len({call.onnx_type for call in calls}) == 1 for calls in parts.values())
    conv, swish, *_, total = parts.values()
    assert [call.op for call in conv] == ["nn.conv2d", "add"]
    assert len(conv[0].onnx_nodes) == 2, "the normalisation was folded into it"
    assert len(swish) > 1 and [call.op for call in total] == ["add", "add"]


def test_batch_normalization_joins_a_dense_layer() -> None:
    for transposed in (0, 1):
        net = Net("dense", opset=13)
        x = net.input("x", [3, 6])
        weights = net.weight(*((5, 6) if transposed else (6, 5)), fan_in=6)
        y = net.op("Gemm", x, weights, net.vector(5), transB=transposed, name="dense")
        net.output(net.op("Relu", net.batch_norm(y, 5, gain=3.0)))
        model = net.model()
        imported = import_onnx(model)
        assert [n.op for n in imported.graph.nodes] == ["matmul", "add", "nn.relu"]
        check_accounting(model, imported)
        check_numbers(model, imported, 1e-5)


@pytest.mark.parametrize(
    "nodes, operators",
    [
        ("c = Conv(x, w) y = Mul(c, k)", ["nn.conv2d"]),
        ("c = Conv(x, w, v) d = Mul(k, c) y = Add(d, k)", ["nn.conv2d", "add"]),
        ("c = Conv(x, w) y = Mul(c, v)", ["nn.conv2d", "multiply"]),  # along the width
        ("c = Conv(x, w) d = Mul(c, k) y = Add(c, d)", ["nn.conv2d", "multiply", "add"]),
        (
            "c = Conv(x, w) d = Mul(c, k) e = Conv(x, w) y = Sub(d, e)",
            ["nn.conv2d", "nn.conv2d", "subtract"],
        ),
    ],
)
def test_scales_and_shifts_of_channels_join_the_convolution_that_they_alone_read(
    nodes: str, operators: list[str]
) -> None:
    numbers = np.random.default_rng(0).standard_normal
    weights = {"w": numbers((4, 3, 1, 1)), "k": numbers((4, 1, 1)), "v": numbers(4)}
    constants = {name: each.astype(np.float32) for name, each in weights.items()}
    model = written(f"(float[1,3,2,4] x) => (y) {{ {nodes} }}", constants)
    imported = import_onnx(model)
    assert [n.op for n in imported.graph.nodes] == operators
    check_accounting(model, imported)
    check_numbers(model, imported, 1e-5)


def test_padding_by_other_values_stays() -> None:
    for more in (["value"], []):
        net = Net("padded", opset=13)
        extra = [net.const(np.float32(1.0))] if more else []
        x = net.input("x", [1, 3, 6, 6])
        pads = net.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
        y = net.op("Pad", x, pads, *extra, mode="constant" if more else "reflect")
        net.output(net.conv(y, 3, 4))
        imported = import_onnx(net.model())
        assert "nn.pad" in {n.op for n in imported.graph.nodes}
        check_numbers(net.model(), imported, 1e-6)


def test_sizes_computed_from_shapes_fold_away() -> None:
    model = zoo.build("exported")
    imported = import_onnx(model, "exported", zoo.SHAPES["exported"])
    kinds = {n.name: n.op_type for n in model.graph.node}
    left = {kinds[n] for node in imported.graph.nodes for n in node.onnx_nodes}
    of_shapes = {"Shape", "Concat", "Unsqueeze", "Range", "Expand", "ConstantOfShape", "Trilu"}
    assert not left & of_shapes


ONES = {"ones": np.ones(6, np.float32), "whole": np.array([2, 6])}
EDGES = {
    "input is output": ("() => (x) { }", 0),
    "everything folds": ("() => (y) { y = Add(ones, ones) }", 0),
    "nothing happens": (
        "() => (y) { a = Identity(x) b = Split<axis=1>(a) y = Reshape(b, whole) }",
        0,
    ),
    "weight is output": ("() => (ones, y) { y = Relu(x) }", 1),
    "fields are outputs": ("() => (b, a) { a, b = Split<axis=1>(x) }", 1),
    "value inside is output": ("() => (b, a) { a = Relu(x) b = Add(a, a) }", 2),
    "names that are no identifiers": (
        "(float[2,6] named, float[2,6] x_1_0) => (y) { a = Mul(x, named) y = Add(a, x_1_0) }",
        2,
    ),
    "scalar": ("() => (y) { y = ReduceSum<keepdims=0>(x) }", 1),
}
"""Graphs over ``float[2,6] x`` and other inputs, with the number of operators that is left."""


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str) -> None:
    text, nodes = EDGES[name]
    model = written(text.replace("(", "(float[2,6] x, ", 1).replace("x, )", "x)"), ONES, opset=17)
    if name == "names that are no identifiers":
        model.graph.input[1].name = model.graph.node[0].input[1] = "x/1:0"
    for value in model.graph.output:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    imported = import_onnx(model, name)
    check_accounting(model, imported)
    check_numbers(model, imported, 1e-6)
    assert imported.record.nodes == nodes
    inputs = imported.random_inputs(0)
    given = run_relax(imported, [inputs[n] for n, _ in imported.inputs])
    for a, b in zip(given, run_onnx(imported.onnx, inputs), strict=True):
        assert a.shape == b.shape and relative_error(a, b) <= 1e-6
