"""What becomes of the attributes of a model's local functions when their calls are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import ImportedModel, import_model, import_onnx
from collage_engine.support.errors import ModelError
from tests.support.model_runs import run_onnx
from tests.support.written import written

X = np.array([-2.0, -0.5, 0.25, 3.0], np.float32)


def function(signature: str, body: str, overload: str = "") -> str:
    """Return a function of the domain ``my`` as text: its name and attributes, and its nodes."""
    about = '<opset_import: ["": 20, "my": 1], domain: "my"'
    inputs = "(x, c)" if "If(c)" in body else "(x)"
    return f'{about}, overload: "{overload}"> {signature} {inputs} => (y) {{ {body} }} '


ACT = function("Act <slope: float = 0.25>", "y = LeakyRelu<alpha: float = @slope>(x)")


def model_of(nodes: str, functions: str = ACT, opset: int = 20) -> onnx.ModelProto:
    condition = ", bool c" if "c)" in nodes else ""
    return written(
        f"(float[4] x{condition}) => (y) {{ {nodes} }} {functions}", opset=opset, more='"my": 1'
    )


def leaky(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x < 0, x * np.float32(alpha), x)


def of_node(imported: ImportedModel, kind: str, name: str) -> list[Any]:
    """Return the values of an attribute in the imported graph."""
    nodes = [n for n in imported.graph.nodes if n.op == kind]
    return [n.attributes[name] for n in nodes]


def test_the_graph_shows_a_declared_value_and_one_that_the_call_gives() -> None:
    imported = import_onnx(model_of("t = my.Act(x) y = my.Act<slope: float = 0.5>(t)"))
    assert of_node(imported, "nn.leakyrelu", "alpha") == [0.25, 0.5]
    (y,) = run_onnx(imported.onnx, {"x": X})
    np.testing.assert_allclose(y, leaky(leaky(X, 0.25), 0.5), rtol=1e-6)


@pytest.mark.parametrize(
    "outer, given, alphas",
    [
        ("b: float = 0.75", "", [0.75, 0.25]),
        ("b: float = 0.75", "<b: float = 0.125>", [0.125, 0.25]),
        ("b", "<b: float = 0.125>", [0.125, 0.25]),
        ("b", "", [0.25, 0.25]),  # so the inner function's own value holds
    ],
)
def test_a_function_hands_its_attribute_on_to_another(
    outer: str, given: str, alphas: list[float]
) -> None:
    body = "t = my.Act<slope: float = @b>(x) y = my.Act(t)"
    model = model_of(f"y = my.Outer{given}(x)", ACT + function(f"Outer <{outer}>", body))
    imported = import_onnx(model)
    assert of_node(imported, "nn.leakyrelu", "alpha") == alphas
    (y,) = run_onnx(imported.onnx, {"x": X})
    np.testing.assert_allclose(y, leaky(leaky(X, alphas[0]), alphas[1]), rtol=1e-6)
    np.testing.assert_allclose(y, run_onnx(model, {"x": X})[0], rtol=1e-6)


def test_a_call_within_a_branch_of_the_model() -> None:
    then = "then_branch = g1 () => (u) { u = my.Act(x) }"
    other = "else_branch = g2 () => (w) { w = my.Act<slope: float = 0.5>(x) }"
    imported = import_onnx(model_of(f"y = If(c) <{then}, {other}>"))
    for condition, alpha in ((True, 0.25), (False, 0.5)):
        (y,) = run_onnx(imported.onnx, {"x": X, "c": np.array(condition)})
        np.testing.assert_allclose(y, leaky(X, alpha), rtol=1e-6)


@pytest.mark.parametrize(
    "body, said",
    [
        ("y = RandomNormalLike(x)", "draws random numbers"),
        ("y = GRU<layout: int = 1, hidden_size: int = 4>(x, x, x)", "has its batch first"),
    ],
)
def test_what_no_step_could_handle_is_refused_within_a_function(body: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        import_onnx(model_of("y = my.F(x)", function("F", body)))


def test_overloads_keep_values_of_their_own() -> None:
    body = "y = LeakyRelu<alpha: float = @slope>(x)"
    functions = "".join(
        function(f"Act <slope: float = {slope}>", body, overload)
        for overload, slope in (("one", 0.25), ("two", 0.75))
    )
    imported = import_onnx(model_of("t = my.Act:two(x) y = my.Act:one(t)", functions))
    assert of_node(imported, "nn.leakyrelu", "alpha") == [0.75, 0.25]


def test_a_function_of_other_versions_and_of_a_domain_that_the_model_does_not_name() -> None:
    """Its nodes keep the call's name, though a node of the model has the name of one of them."""
    called = """<opset_import: ["": 17, "com.microsoft": 1], domain: "my">
    F (x) => (y) {
        [relu] t = Relu(x)
        y = com.microsoft.FastGelu(t)
    }"""
    model = model_of("[relu] q = Neg(x) y = my.F(q)", called)
    imported = import_onnx(model)
    calls = [n.onnx_nodes for n in imported.graph.nodes]
    assert calls[0] == ("relu",) and set(calls[1:]) == {("y",)}
    np.testing.assert_allclose(
        run_onnx(imported.onnx, {"x": X})[0], run_onnx(model, {"x": X})[0], rtol=1e-6
    )


@pytest.mark.parametrize("kind, given", [("Swish", {}), ("Swish", {"alpha": 0.5}), ("Celu", {})])
def test_values_that_the_standard_declares_for_operators_that_it_writes_out(
    kind: str, given: dict[str, float]
) -> None:
    attributes = f"<alpha={given['alpha']}>" if given else ""
    model = model_of(f"y = {kind}{attributes}(x)", "", opset=24)
    (y,) = run_onnx(import_onnx(model).onnx, {"x": X})
    swish = X / (1 + np.exp(-X * given.get("alpha", 1.0)))
    wanted = swish if kind == "Swish" else np.maximum(X, 0) + np.minimum(0, np.expm1(X))
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-7)


def test_the_standards_domain_may_be_written_in_two_ways(tmp_path: Path) -> None:
    """Once as ``ai.onnx``: in the imports, nodes, functions and branches of a file."""
    text = """(float[4] x, bool c) => (y) {
        a = ai.onnx.Relu(x)
        b = my.Twice(a)
        y = ai.onnx.If(c) <
            then_branch = g1 () => (t) { t = ai.onnx.Exp(b) },
            else_branch = g2 () => (e) { e = ai.onnx.Neg(b) }
        >
    } <opset_import: ["ai.onnx": 20], domain: "my"> Twice (x) => (y) {
        two = ai.onnx.Constant<value_float = 2.0>()
        y = ai.onnx.Mul(x, two)
    }"""
    model = written(text, opset=20, more='"my": 1')
    model.opset_import[0].domain = "ai.onnx"
    onnx.save(model, tmp_path / "m.onnx")
    imported = import_model(tmp_path / "m.onnx")
    assert [n.op_type for n in imported.onnx.graph.node] == ["Relu", "Mul", "If"]
    for c in (True, False):
        inputs = {"x": X, "c": np.array(c)}
        twice = 2 * np.maximum(X, 0)
        for given in (
            run_onnx(imported.onnx, inputs),
            [*original_outputs(imported, inputs).values()],
        ):
            np.testing.assert_allclose(given[0], np.exp(twice) if c else -twice, rtol=1e-6)
