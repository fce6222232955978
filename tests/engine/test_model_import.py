"""Importing the zoo: provenance, numbers, determinism, names, and the nodes it cannot take."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage_engine.model.importer import ImportedModel, import_model, import_onnx
from collage_engine.model.index_set import members
from collage_engine.model.onnx_slice import slice_model
from collage_engine.records.errors import ModelError, UsageError
from tests import zoo
from tests.model_runs import relative_error, run_onnx, run_relax
from tests.zoo_net import Net

LIGHT_ENOUGH = [
    "light_densenet121", "light_inception_v1", "light_inception_v2", "light_resnet50",
    "light_shufflenet", "light_squeezenet", "mobilenet_v2",
]  # fmt: skip
HUGE = ["light_bvlc_alexnet", "light_vgg19", "light_zfnet512"]


def _import(name: str) -> tuple[onnx.ModelProto, ImportedModel]:
    model = zoo.build(name)
    return model, import_onnx(model, name, zoo.SHAPES.get(name))


def _check_accounting(model: onnx.ModelProto, imported: ImportedModel) -> None:
    """Every node of the file lives on in operators or is folded, never both."""
    record, graph = imported.record, imported.graph
    names = [n.name or n.output[0] for n in model.graph.node]
    lived = {name for node in graph.nodes for name in node.onnx_nodes}
    assert not lived & set(record.folded)
    assert sorted([*lived, *record.folded]) == sorted(names)
    assert record.onnx_nodes == len(names)
    assert record.nodes == len(graph.operators) == sum(n.form == "call" for n in graph.nodes)
    for node in graph.nodes:
        if node.form == "call":
            assert node.onnx_nodes and node.name == node.onnx_nodes[0]
        msgspec.json.encode(node)  # everything is a JSON value


def _check_numbers(model: onnx.ModelProto, imported: ImportedModel, tolerance: float) -> None:
    """The cleaned model computes what the user's does."""
    inputs = imported.random_inputs(1)
    wanted = run_onnx(model, inputs)
    given = run_onnx(imported.onnx, inputs)
    for (name, kind), a, b in zip(imported.outputs, given, wanted, strict=True):
        assert a.shape == b.shape == kind.shape and str(a.dtype) == kind.dtype, name
        assert relative_error(a, b) <= tolerance, name


@pytest.mark.parametrize("name", [*zoo.SMALL, *LIGHT_ENOUGH])
def test_every_node_is_accounted_for_and_the_numbers_stay(name: str) -> None:
    model, imported = _import(name)
    _check_accounting(model, imported)
    _check_numbers(model, imported, 2e-3 if name == "float16" else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", HUGE)
def test_huge_models_import(name: str) -> None:
    model, imported = _import(name)
    _check_accounting(model, imported)
    _check_numbers(model, imported, 1e-5)


@pytest.mark.parametrize("name", [n for n in zoo.SMALL if n not in ("bert", "gpt2")])
def test_relax_module_computes_what_onnx_runtime_does(name: str) -> None:
    _, imported = _import(name)
    inputs = imported.random_inputs(2)
    wanted = run_onnx(imported.onnx, inputs)
    given = run_relax(imported.module, [inputs[n] for n, _ in imported.inputs])
    tolerance = {"float16": 1e-2, "qdq": 2e-2}.get(name, 1e-4)
    for a, b in zip(given, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert relative_error(a, b) <= tolerance


def test_resnet_has_one_operator_per_convolution_bias_relu_and_sum() -> None:
    _, imported = _import("light_resnet50")
    counts: dict[str, int] = {}
    for node in imported.graph.nodes:
        counts[node.op] = counts.get(node.op, 0) + (node.form == "call")
    assert counts["nn.conv2d"] == 53 and counts["nn.relu"] == 49
    assert counts["add"] == 53 + 16 + 1
    assert imported.record.nodes == 177
    assert all(not op.startswith("call_tir") for op in counts)


@pytest.mark.parametrize("name", [*zoo.SMALL, "light_inception_v2", "mobilenet_v2"])
def test_no_operator_is_left_to_opaque_tir(name: str) -> None:
    _, imported = _import(name)
    ops = {n.op for n in imported.graph.nodes}
    assert not [op for op in ops if op.startswith("call_tir")]


def test_absorbed_nodes_are_named_by_the_operator_that_does_their_work() -> None:
    model, imported = _import("residual_block")
    graph = imported.graph
    by_name = {n: node for node in graph.nodes for n in node.onnx_nodes if node.op == "nn.conv2d"}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            conv = by_name[node.name]
            producer = next(n for n in model.graph.node if n.output[0] == node.input[0])
            assert conv.onnx_nodes[0] == producer.name
    assert not imported.record.folded


def test_leftovers_are_folded_and_unnamed_nodes_go_by_their_first_output() -> None:
    model, imported = _import("leftovers")
    folded = set(imported.record.folded)
    assert {"dead", "half"} <= folded
    unnamed = [n for n in model.graph.node if not n.name]
    lived = {n for node in imported.graph.nodes for n in node.onnx_nodes}
    assert {n.output[0] for n in unnamed} <= lived | folded
    kinds = {n.name or n.output[0]: n.op_type for n in model.graph.node}
    assert {kinds[n] for n in folded} >= {"Identity", "Dropout", "Shape", "Concat", "Constant"}
    sums = [n for n in imported.graph.nodes if any(kinds[x] == "Sum" for x in n.onnx_nodes)]
    assert [n.op for n in sums] == ["add", "add"]


def test_int8_weights_stay_int8() -> None:
    _, imported = _import("qdq")
    kinds = [n.type.dtype for n in imported.graph.nodes if n.form == "constant"]
    assert kinds.count("int8") >= 2
    weights = [
        n for n in imported.graph.nodes
        if n.op == "dequantize" and imported.graph.nodes[n.inputs[0]].form == "constant"
    ]  # fmt: skip
    assert len(weights) == 4  # two kernels, two biases


def test_inputs_and_outputs_keep_file_order_and_names() -> None:
    _, imported = _import("several")
    assert [n for n, _ in imported.inputs] == ["a", "b", "unused"]
    unused = imported.graph.nodes[imported.graph.record.inputs[2]]
    assert unused.form == "parameter" and not imported.graph.users[unused.index]
    assert [str(t) for _, t in imported.outputs] == ["float32[2,4]", "int64[2]"]


def test_outputs_that_are_inputs_constants_or_twice_the_same() -> None:
    _, imported = _import("outputs")
    graph = imported.graph
    forms = [graph.nodes[i].form for i in graph.record.outputs]
    assert forms == ["parameter", "call", "call", "constant", "call"]
    assert graph.record.outputs[1] == graph.record.outputs[2]
    assert graph.record.output_names == ("same_as_x", "relu:0", "y_again", "fixed", "sigmoid:0")


def test_dynamic_batch_takes_the_size_it_is_given() -> None:
    model = zoo.build("dynamic_batch")
    for batch in (1, 7):
        imported = import_onnx(model, "d", {"image": (batch, 3, 8, 8)})
        assert imported.inputs[0][1].shape[0] == imported.outputs[0][1].shape[0] == batch
        assert imported.record.shapes == {"image": (batch, 3, 8, 8)}
    with pytest.raises(ModelError, match="--shape image=1,3,8,8"):
        import_onnx(model, "d")


def test_graph_is_in_post_dfs_order_with_consistent_relax() -> None:
    for name in ("gpt2", "split_concat", "unet"):
        _, imported = _import(name)
        graph = imported.graph
        assert [n.form for n in graph.nodes][: len(imported.inputs)] == ["parameter"] * len(
            imported.inputs
        )
        block = imported.module["main"].body.blocks
        assert len(block) == 1
        bound = [b.var for b in block[0].bindings]
        ours = [imported.var(n.index) for n in graph.nodes if n.form in ("call", "projection")]
        assert len(bound) == len(ours) and all(
            a.same_as(b) for a, b in zip(bound, ours, strict=True)
        )
        for node in graph.nodes:
            if node.form == "constant":
                values = imported.constant(node.index)
                assert values.shape == node.type.shape and str(values.dtype) == node.type.dtype
            if node.form == "call" and node.post_dominator is not None:
                assert node.post_dominator > node.index


def test_named_values_are_what_they_are_called() -> None:
    """Each value's ONNX name, sliced alone from the inputs, gives that very value."""
    _, imported = _import("unet")
    inputs = imported.random_inputs(4)
    names = {
        n.index: n.onnx_value for n in imported.graph.nodes if n.form == "call" and n.onnx_value
    }
    exposed = onnx.ModelProto()
    exposed.CopyFrom(imported.onnx)
    del exposed.graph.output[:]
    for value in dict.fromkeys(names.values()):
        exposed.graph.output.append(helper.make_empty_tensor_value_info(value))
    truth = dict(zip(dict.fromkeys(names.values()), run_onnx(exposed, inputs), strict=True))
    for index in list(names)[::5]:
        part = slice_model(imported, imported.graph.record.inputs, (index,))
        feed = {
            f"v{i}": inputs[n]
            for (n, _), i in zip(imported.inputs, imported.graph.record.inputs, strict=True)
        }
        np.testing.assert_allclose(
            run_onnx(part, feed)[0], truth[names[index]], rtol=1e-5, atol=1e-6
        )


_DIGEST = """
import sys, hashlib, msgspec
from collage_engine.model.importer import import_model
m = import_model(sys.argv[1])
print(hashlib.sha256(msgspec.json.encode([m.graph.record, m.record])).hexdigest())
"""


def test_same_file_same_numbers_in_every_process(tmp_path: Path) -> None:
    path = tmp_path / "gpt2.onnx"
    path.write_bytes(zoo.build("gpt2").SerializeToString())
    imported = import_model(path)
    here = hashlib.sha256(msgspec.json.encode([imported.graph.record, imported.record])).hexdigest()
    root = Path(__file__).parents[2]
    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", _DIGEST, str(path)], cwd=root, capture_output=True, text=True,
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"}, check=True,
        ).stdout.strip()  # fmt: skip
        assert there == here
    assert imported.record.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_users_model_is_not_changed_by_importing_it() -> None:
    model = zoo.build("leftovers")
    before = model.SerializeToString(deterministic=True)
    import_onnx(model)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    "kind, attributes, domain, said",
    [
        ("Det", {}, "", r"operator Det \(node 'culprit'\) cannot be imported"),
        ("FusedGelu", {}, "com.acme", r"operator FusedGelu of com.acme \(node 'culprit'\)"),
        (
            "MaxPool",
            {"kernel_shape": [9, 9, 9, 9]},
            "",
            r"'culprit' \(MaxPool\) cannot be imported",
        ),
    ],
)
def test_operators_relax_cannot_import_are_named(
    kind: str, attributes: dict, domain: str, said: str, capfd: pytest.CaptureFixture
) -> None:
    net = Net("bad", opset=13)
    net.output(
        net.op(kind, net.input("x", [2, 2]), name="culprit", domain=domain, **attributes),
        shape=[2, 2],
    )
    model = net.model(check=False)
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    with pytest.raises(ModelError, match=said) as error:
        import_onnx(model, "m.onnx")
    assert "\n" not in str(error.value) and str(error.value).startswith("m.onnx: ")
    import gc

    del error
    gc.collect()
    assert capfd.readouterr() == ("", "")


def test_shapes_that_do_not_fit_name_the_node() -> None:
    net = Net("misfit", opset=13)
    net.output(
        net.op("MatMul", net.input("x", [2, 3]), net.weight(4, 5), name="culprit"), shape=[2, 5]
    )
    with pytest.raises(ModelError, match="'culprit'"):
        import_onnx(net.model(), "m.onnx")


def test_second_outputs_that_the_importer_would_invent_are_refused() -> None:
    net = Net("norm", opset=17)
    x = net.input("x", [2, 8])
    outputs = net.op(
        "LayerNormalization", x, net.vector(8), net.vector(8), outputs=2, name="culprit"
    )
    net.output(outputs[0])
    assert import_onnx(net.model()).record.nodes == 1
    net.output(outputs[1])
    with pytest.raises(ModelError, match="only the first 1 of the outputs of the node 'culprit'"):
        import_onnx(net.model())


def test_local_functions_are_inlined_under_the_name_of_their_call() -> None:
    body = [
        helper.make_node("Mul", ["a", "a"], ["square"], name="inner"),
        helper.make_node("Add", ["square", "a"], ["b"]),
    ]
    opset = [helper.make_opsetid("", 17)]
    function = helper.make_function("mine", "Poly", ["a"], ["b"], body, opset)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Poly", ["r"], ["p"], name="first", domain="mine"),
        helper.make_node("Poly", ["p"], ["y"], domain="mine"),
    ]
    graph = helper.make_graph(
        nodes, "f", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )  # fmt: skip
    model = helper.make_model(
        graph, functions=[function], opset_imports=[*opset, helper.make_opsetid("mine", 1)],
        ir_version=8,
    )  # fmt: skip
    imported = import_onnx(model)
    assert [n.onnx_nodes for n in imported.graph.nodes if n.form == "call"] == [
        ("relu",), ("first",), ("first",), ("y",), ("y",)
    ]  # fmt: skip
    _check_numbers(model, imported, 1e-6)


def test_missing_file_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        import_model(tmp_path / "none.onnx")


def test_quantized_operators_become_dequantize_float_quantize() -> None:
    net = Net("qlinear", opset=13)
    x = net.input("x", [1, 3, 6, 6], "uint8")
    weights = net.const(net.random.integers(-9, 9, (4, 3, 3, 3)).astype(np.int8))
    scales = net.const(np.full(4, 0.1, np.float32))
    bias = net.const(np.arange(4, dtype=np.int32))
    one, zero = net.const(np.float32(0.05)), net.const(np.uint8(100))
    zeros = net.const(np.zeros(4, np.int8))
    y = net.op("QLinearConv", x, one, zero, weights, scales, zeros, one, zero, bias, name="conv")
    table = net.const(net.random.integers(0, 255, (4, 5)).astype(np.uint8))
    y = net.op("QLinearMatMul", y, one, zero, table, one, zero, one, zero, name="product")
    net.output(y, "uint8", [1, 4, 4, 5])
    model = net.model()
    y = model.graph.node[-1]
    y.input[3] = table
    imported = import_onnx(model)
    _check_accounting(model, imported)
    inputs = imported.random_inputs(0)
    given, wanted = run_onnx(imported.onnx, inputs)[0], run_onnx(model, inputs)[0]
    assert np.abs(given.astype(int) - wanted.astype(int)).max() <= 1


def test_closing_never_leaves_a_tuple_on_the_border() -> None:
    _, imported = _import("gpt2")
    graph = imported.graph
    for node in graph.nodes:
        if node.is_tuple and node.form == "call":
            closed = graph.close(1 << node.index)
            inputs, outputs = graph.boundary(closed)
            assert all(not graph.nodes[i].is_tuple for i in (*inputs, *outputs))
            assert sum(graph.nodes[i].form == "projection" for i in members(closed)) == 3


def test_batch_normalization_joins_a_dense_layer() -> None:
    for transposed in (0, 1):
        net = Net("dense", opset=13)
        x = net.input("x", [3, 6])
        weights = net.weight(*((5, 6) if transposed else (6, 5)), fan_in=6)
        y = net.op("Gemm", x, weights, net.vector(5), transB=transposed, name="dense")
        net.output(net.op("Relu", net.batch_norm(y, 5, gain=3.0)))
        model = net.model()
        imported = import_onnx(model)
        assert [n.op for n in imported.graph.nodes if n.form == "call"] == [
            "matmul", "add", "nn.relu"
        ]  # fmt: skip
        _check_accounting(model, imported)
        _check_numbers(model, imported, 1e-5)


def test_zero_padding_joins_the_convolution_behind_it() -> None:
    net = Net("padded", opset=13)
    pads = net.const([0, 0, 1, 0, 0, 0, 2, 1], np.int64)
    x = net.op("Pad", net.input("x", [1, 3, 6, 6]), pads, name="pad")
    net.output(net.conv(x, 3, 4, pad=1, name="conv"))
    model = net.model()
    imported = import_onnx(model)
    conv = next(n for n in imported.graph.nodes if n.form == "call")
    assert conv.op == "nn.conv2d" and conv.onnx_nodes == ("conv", "pad")
    assert conv.attributes["padding"] == [2, 1, 3, 2]
    _check_accounting(model, imported)
    _check_numbers(model, imported, 1e-6)


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
        _check_numbers(net.model(), imported, 1e-6)


def test_sizes_computed_from_shapes_fold_away() -> None:
    model, imported = _import("exported")
    ops = {n.op for n in imported.graph.nodes if n.form == "call"}
    assert ops == {
        "add", "divide", "matmul", "nn.layer_norm", "nn.softmax", "permute_dims", "reshape",
        "strided_slice", "take",
    }  # fmt: skip
    kinds = {n.name: n.op_type for n in model.graph.node}
    left = {kinds[n] for node in imported.graph.nodes for n in node.onnx_nodes}
    assert not left & {
        "Shape",
        "Concat",
        "Unsqueeze",
        "Range",
        "Expand",
        "ConstantOfShape",
        "Trilu",
    }


def test_bfloat16_constants_and_inputs_keep_their_type() -> None:
    import ml_dtypes

    net = Net("bfloat16", opset=13)
    x = net.op("Cast", net.input("x", [2, 3]), to=int(TensorProto.BFLOAT16))
    table = net.const(np.arange(3).astype(ml_dtypes.bfloat16))
    net.output(net.op("Cast", net.op("Add", x, table), to=1))
    imported = import_onnx(net.model())
    constant = next(n for n in imported.graph.nodes if n.form == "constant")
    assert constant.type.dtype == "bfloat16"
    np.testing.assert_array_equal(
        imported.constant(constant.index).astype(np.float32), [0.0, 1.0, 2.0]
    )


def test_operators_without_a_known_kind_are_probed() -> None:
    from tvm import relax

    from collage_engine.model.op_probe import probe_kind

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, 3, 8], "float32"))
    y = relax.Var("y", relax.TensorType([2, 8, 4], "float32"))

    def kind(call: object) -> str:
        return probe_kind(builder.normalize(call), {})

    assert kind(relax.op.nn.relu(x)) == "elementwise"
    assert kind(relax.op.permute_dims(x)) == "injective"
    assert kind(relax.op.sum(x, [1])) == "reduction"
    assert kind(relax.op.matmul(x, y)) == "anchor"
    assert kind(relax.op.sort(x)) == "opaque"


def _edge(name: str) -> Net:
    net = Net(name, opset=17)
    x = net.input("x", [2, 6])
    match name:
        case "input is output":
            net.output(x, shape=[2, 6])
        case "everything folds":
            ones = net.const(np.ones(6, np.float32))
            net.output(net.op("Add", ones, ones), shape=[6])
        case "nothing happens":
            y = net.op("Split", net.op("Identity", x), outputs=1, axis=1)
            net.output(net.op("Reshape", y, net.const([2, 6], np.int64)), shape=[2, 6])
        case "weight is output":
            net.output(net.const(np.ones(6, np.float32)), shape=[6])
            net.output(net.op("Relu", x), shape=[2, 6])
        case "fields are outputs":
            parts = net.op("Split", x, outputs=2, axis=1)
            net.output(parts[1], shape=[2, 3])
            net.output(parts[0], shape=[2, 3])
        case "value inside is output":
            y = net.op("Relu", x)
            net.output(net.op("Add", y, y), shape=[2, 6])
            net.output(y, shape=[2, 6])
        case "names that are no identifiers":
            other = net.input("x/1:0", [2, 6])
            again = net.input("x_1_0", [2, 6])
            net.output(net.op("Add", net.op("Mul", x, other), again), shape=[2, 6])
        case "scalar":
            net.output(net.op("ReduceSum", x, keepdims=0), shape=[])
    return net


@pytest.mark.parametrize(
    "name, operators",
    [
        ("input is output", 0), ("everything folds", 0), ("nothing happens", 0),
        ("weight is output", 1), ("fields are outputs", 1), ("value inside is output", 2),
        ("names that are no identifiers", 2), ("scalar", 1),
    ],
)  # fmt: skip
def test_edges(name: str, operators: int) -> None:
    model = _edge(name).model(check=False)
    imported = import_onnx(model, name)
    _check_accounting(model, imported)
    _check_numbers(model, imported, 1e-6)
    assert imported.record.nodes == operators
    inputs = imported.random_inputs(0)
    given = run_relax(imported.module, [inputs[n] for n, _ in imported.inputs])
    for a, b in zip(given, run_onnx(imported.onnx, inputs), strict=True):
        assert a.shape == b.shape and relative_error(a, b) <= 1e-6
