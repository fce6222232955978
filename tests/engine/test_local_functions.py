"""What becomes of the attributes of a model's local functions when their calls are replaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from collage_engine.model.importer import ImportedModel, import_onnx
from tests.support.model_runs import run_onnx

MINE = "my.own"
IMPORTS = [helper.make_opsetid("", 20), helper.make_opsetid(MINE, 1)]
X = np.array([-2.0, -0.5, 0.25, 3.0], np.float32)


def node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    """Return a node; ``attribute="@name"`` refers to an attribute of the function around it."""
    references = {k: v[1:] for k, v in attributes.items() if str(v).startswith("@")}
    plain = {k: v for k, v in attributes.items() if k not in references}
    domain = MINE if kind[0] == "_" else ""
    made = helper.make_node(kind, inputs, outputs, domain=domain, **plain)
    for name, of in references.items():
        kind_of = REFERENCES.get(name, AttributeProto.FLOAT)
        made.attribute.append(AttributeProto(name=name, ref_attr_name=of, type=kind_of))
    return made


REFERENCES = {
    "to": AttributeProto.INT,
    "value_ints": AttributeProto.INTS,
    "keepdims": AttributeProto.INT,
    "approximate": AttributeProto.STRING,
    "value": AttributeProto.TENSOR,
}


def function(
    name: str,
    *body: onnx.NodeProto,
    declared: dict[str, Any] | None = None,
    named: list[str] | None = None,
    overload: str = "",
) -> onnx.FunctionProto:
    values = [helper.make_attribute(k, v) for k, v in (declared or {}).items()]
    inputs = ["x", "c"] if any("c" in n.input for n in body) else ["x"]
    return helper.make_function(
        MINE, name, inputs, ["y"], list(body), IMPORTS, named or [], values, overload=overload
    )


def model_of(*nodes: onnx.NodeProto, functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    if any("c" in n.input for n in nodes):
        inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    graph = helper.make_graph(list(nodes), "g", inputs, [onnx.ValueInfoProto(name="y")])
    return helper.make_model(graph, opset_imports=IMPORTS, functions=functions, ir_version=10)


def leaky(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x < 0, x * np.float32(alpha), x)


def of_node(imported: ImportedModel, kind: str, name: str) -> list[Any]:
    """Return the values of an attribute in the imported graph."""
    nodes = [n for n in imported.graph.nodes if n.form == "call" and n.op == kind]
    return [n.attributes[name] for n in nodes]


ACT = function("_Act", node("LeakyRelu", ["x"], ["y"], alpha="@slope"), declared={"slope": 0.25})


def test_the_graph_shows_a_declared_value_and_one_that_the_call_gives() -> None:
    model = model_of(
        node("_Act", ["x"], ["t"]), node("_Act", ["t"], ["y"], slope=0.5), functions=[ACT]
    )
    imported = import_onnx(model)
    assert of_node(imported, "nn.leakyrelu", "alpha") == [0.25, 0.5]
    (y,) = run_onnx(imported.onnx, {"x": X})
    np.testing.assert_allclose(y, leaky(leaky(X, 0.25), 0.5), rtol=1e-6)


@pytest.mark.parametrize(
    "body, declared, wanted",
    [
        ([node("Cast", ["x"], ["y"], to="@to")], {"to": TensorProto.INT64}, X.astype(np.int64)),
        (
            [
                node("Constant", [], ["axes"], value_ints="@axes"),
                node("ReduceSum", ["x", "axes"], ["y"], keepdims="@keep"),
            ],
            {"axes": [0], "keep": 0},
            X.sum(),
        ),
        (
            [node("Constant", [], ["k"], value="@k"), node("Mul", ["x", "k"], ["y"])],
            {"k": numpy_helper.from_array(np.full(4, 3, np.float32))},
            3 * X,
        ),
        (
            [node("Gelu", ["x"], ["y"], approximate="@how")],
            {"how": "tanh"},
            X / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))),
        ),
    ],
    ids=["int", "ints", "tensor", "string"],
)
def test_declared_values_of_each_kind(
    body: list[onnx.NodeProto], declared: dict[str, Any], wanted: np.ndarray
) -> None:
    model = model_of(node("_F", ["x"], ["y"]), functions=[function("_F", *body, declared=declared)])
    (y,) = run_onnx(import_onnx(model).onnx, {"x": X})
    assert y.shape == wanted.shape
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "outer, given, alphas",
    [
        ({"declared": {"b": 0.75}}, {}, [0.75, 0.25]),
        ({"declared": {"b": 0.75}}, {"b": 0.125}, [0.125, 0.25]),
        ({"named": ["b"]}, {"b": 0.125}, [0.125, 0.25]),
        ({"named": ["b"]}, {}, [0.25, 0.25]),  # so the inner function's own value holds
    ],
)
def test_a_function_hands_its_attribute_on_to_another(
    outer: dict[str, Any], given: dict[str, float], alphas: list[float]
) -> None:
    body = [node("_Act", ["x"], ["t"], slope="@b"), node("_Act", ["t"], ["y"])]
    model = model_of(
        node("_Outer", ["x"], ["y"], **given), functions=[ACT, function("_Outer", *body, **outer)]
    )
    imported = import_onnx(model)
    assert of_node(imported, "nn.leakyrelu", "alpha") == alphas
    (y,) = run_onnx(imported.onnx, {"x": X})
    np.testing.assert_allclose(y, leaky(leaky(X, alphas[0]), alphas[1]), rtol=1e-6)
    np.testing.assert_allclose(y, run_onnx(model, {"x": X})[0], rtol=1e-6)


def branch(of: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph([of], "branch", [], [onnx.ValueInfoProto(name=of.output[0])])


@pytest.mark.parametrize("condition", [True, False])
def test_attributes_within_the_branches_of_a_function(condition: bool) -> None:
    body = node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch(node("LeakyRelu", ["x"], ["u"], alpha="@s")),
        else_branch=branch(node("_Act", ["x"], ["w"])),
    )
    model = model_of(
        node("_Cond", ["x", "c"], ["y"]),
        functions=[ACT, function("_Cond", body, declared={"s": 0.75})],
    )
    (y,) = run_onnx(import_onnx(model).onnx, {"x": X, "c": np.array(condition)})
    np.testing.assert_allclose(y, leaky(X, 0.75 if condition else 0.25), rtol=1e-6)


def test_a_call_within_a_branch_of_the_model() -> None:
    choice = node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch(node("_Act", ["x"], ["u"])),
        else_branch=branch(node("_Act", ["x"], ["w"], slope=0.5)),
    )
    imported = import_onnx(model_of(choice, functions=[ACT]))
    for condition, alpha in ((True, 0.25), (False, 0.5)):
        (y,) = run_onnx(imported.onnx, {"x": X, "c": np.array(condition)})
        np.testing.assert_allclose(y, leaky(X, alpha), rtol=1e-6)


def test_overloads_keep_values_of_their_own() -> None:
    body = node("LeakyRelu", ["x"], ["y"], alpha="@slope")
    functions = [
        function("_Act", body, declared={"slope": slope}, overload=overload)
        for overload, slope in (("one", 0.25), ("two", 0.75))
    ]
    calls = [node("_Act", ["x"], ["t"]), node("_Act", ["t"], ["y"])]
    calls[0].overload, calls[1].overload = "two", "one"
    imported = import_onnx(model_of(*calls, functions=functions))
    assert of_node(imported, "nn.leakyrelu", "alpha") == [0.75, 0.25]


def test_a_function_of_other_versions_and_of_a_domain_that_the_model_does_not_name() -> None:
    """Its nodes keep the call's name, though a node of the model has the name of one of them."""
    body = [
        helper.make_node("Relu", ["x"], ["t"], name="relu"),
        helper.make_node("FastGelu", ["t"], ["y"], domain="com.microsoft"),
    ]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    called = helper.make_function(MINE, "_F", ["x"], ["y"], body, imports)
    first = helper.make_node("Neg", ["x"], ["q"], name="relu")
    model = model_of(first, node("_F", ["q"], ["y"]), functions=[called])
    imported = import_onnx(model)
    calls = [n.onnx_nodes for n in imported.graph.nodes if n.form == "call"]
    assert calls[0] == ("relu",) and set(calls[1:]) == {("y",)}
    np.testing.assert_allclose(
        run_onnx(imported.onnx, {"x": X})[0], run_onnx(model, {"x": X})[0], rtol=1e-6
    )


@pytest.mark.parametrize("kind, given", [("Swish", {}), ("Swish", {"alpha": 0.5}), ("Celu", {})])
def test_values_that_the_standard_declares_for_operators_that_it_writes_out(
    kind: str, given: dict[str, float]
) -> None:
    model = model_of(node(kind, ["x"], ["y"], **given), functions=[])
    model.opset_import[0].version = 24
    (y,) = run_onnx(import_onnx(model).onnx, {"x": X})
    swish = X / (1 + np.exp(-X * given.get("alpha", 1.0)))
    wanted = swish if kind == "Swish" else np.maximum(X, 0) + np.minimum(0, np.expm1(X))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-7)
