"""OpenVINO's runtime: what it refuses, what a call costs, and what a process sees of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from collage_engine.records.errors import ToolchainError
from collage_engine.toolchains.openvino.toolchain import OpenVinoToolchain
from collage_engine.toolchains.runtime import builder
from tests.support.toolchain_cases import (
    Net,
    available,
    default_instance,
    error,
    imported,
    load_again,
    one_node,
    reference,
    run,
    saved,
    tensors,
    whole,
)
from tests.support.toolchain_models import X, small_net


@pytest.fixture(scope="module")
def toolchain() -> OpenVinoToolchain:
    return available(OpenVinoToolchain())


# ---- errors ------------------------------------------------------------------------------------


def test_broken_models_are_reported(toolchain: OpenVinoToolchain) -> None:
    plan = {
        "inputs": [],
        "outputs": [],
        "threads": 1,
        "spin": False,
        "precision": "f32",
        "xml_bytes": 7,
    }
    with pytest.raises(ToolchainError, match="cannot read the model"):
        toolchain.create("f", dict(plan), b"no more")
    with pytest.raises(ToolchainError, match="cut off"):
        toolchain.create("f", plan | {"xml_bytes": 8}, b"no more")


def test_other_types_than_the_models_are_refused(toolchain: OpenVinoToolchain) -> None:
    """The plan's types are what arguments are checked against: they must be the model's."""
    made = imported(one_node("Relu", X))
    function = whole(made, default_instance(toolchain))
    plan, model = toolchain.plan(function)
    spec = {"shape": list(X), "dtype": "float32"}
    plan |= {"threads": 1, "spin": False}
    other = {"shape": list(X), "dtype": "int32"}
    for inputs, outputs, words in (
        ([spec, spec], [spec], "2 inputs"),
        ([other], [spec], "input 0"),
        ([spec], [{"shape": [1], "dtype": "float32"}], "output 0"),
    ):
        with pytest.raises(ToolchainError, match=words):
            toolchain.create("f", plan | {"inputs": inputs, "outputs": outputs}, model)


def test_shapes_that_depend_on_values_are_refused(toolchain: OpenVinoToolchain) -> None:
    """A caller allocates outputs before the call, so their shapes must be known."""
    from onnx import helper

    from collage_engine.toolchains.openvino.intermediate import from_onnx, to_ir

    node = helper.make_node("NonZero", ["x"], ["y"])
    given = helper.make_tensor_value_info("x", 1, [4])
    made = helper.make_tensor_value_info("y", 7, [1, "count"])
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph([node], "g", [given], [made])
    xml, constants = to_ir(from_onnx(helper.make_model(graph, opset_imports=opsets)))
    plan = {
        "inputs": [{"shape": [4], "dtype": "float32"}],
        "outputs": [{"shape": [1, 2], "dtype": "int64"}],
        "threads": 1,
        "spin": False,
        "precision": "f32",
        "xml_bytes": len(xml),
    }
    with pytest.raises(ToolchainError, match="no fixed shape"):
        toolchain.create("f", plan, constants + xml)


def test_what_the_frontend_cannot_take_is_a_reason(toolchain: OpenVinoToolchain) -> None:
    from onnx import helper

    from collage_engine.toolchains.openvino.intermediate import from_onnx

    node = helper.make_node("Nonsense", ["x"], ["y"], domain="nowhere")
    values = [helper.make_tensor_value_info(n, 1, [2]) for n in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    with pytest.raises(ToolchainError, match="Nonsense"):
        from_onnx(model)


# ---- what a call costs -------------------------------------------------------------------------


def test_tensors_are_made_once_per_address(toolchain: OpenVinoToolchain) -> None:
    made = imported(small_net())
    function = whole(made, default_instance(toolchain))
    module = toolchain.compile(function)
    feeds = made.random_inputs(0)
    calls = [tensors(function, {k: v.copy() for k, v in feeds.items()}) for _ in range(3)]
    module[function.symbol](*calls[0][0])
    truth = calls[0][1][0].copy()
    for _ in range(10):
        for arguments, results in calls:
            results[0].fill(0)
            module[function.symbol](*arguments)
            np.testing.assert_array_equal(results[0], truth)
    # One input at three addresses, one output at three: each made once, none per call.
    assert toolchain.inside(module)["tensors_made"] == 6


def test_modules_of_an_artifact_keep_their_model_in_a_file(toolchain: OpenVinoToolchain) -> None:
    """A loaded module maps its model from an unlinked file, and still gives it back."""
    net = Net()
    y = net.add("MatMul", net.input(1, 1500), net.randn(1500, 1500))
    y = net.add("Add", y, net.randn(1, 1500))
    model = net.model(net.add("Gather", net.randn(1500, 1500), net.const([3]), axis=0), y)
    made = imported(model)
    function = whole(made, default_instance(toolchain))
    module = load_again(toolchain.compile(function))
    maps = [m for m in Path("/proc/self/maps").read_text().splitlines() if "(deleted)" in m]
    assert any(
        int(e, 16) - int(b, 16) > 9_000_000 for b, e in (m.split()[0].split("-") for m in maps)
    )
    assert len(saved(module)) > 9_000_000
    feeds = made.random_inputs(0)
    for result, truth in zip(
        run(module, function, feeds), reference(model, function, feeds), strict=True
    ):
        assert error(result, truth) < 1e-5


# ---- one process --------------------------------------------------------------------------------


def test_nothing_is_reported_to_anybody(toolchain: OpenVinoToolchain, tmp_path: Path) -> None:
    """Importing OpenVINO's package would write an identifier and send an event."""
    script = """
        import sys, threading
        from collage_engine.toolchains.openvino.toolchain import OpenVinoToolchain
        from tests.support.toolchain_models import small_net
        from tests.support.toolchain_cases import default_instance, imported, whole
        toolchain = OpenVinoToolchain()
        net = imported(small_net())
        module = toolchain.compile(whole(net, default_instance(toolchain)))
        assert toolchain.inside(module)["steps"]
        assert "openvino" in sys.modules and "openvino_telemetry" not in sys.modules
        assert threading.active_count() == 1, threading.enumerate()
        import openvino_telemetry  # another's import still works
    """
    home = {name: value for name, value in os.environ.items() if name != "CI"}
    home["HOME"] = str(tmp_path)
    home.setdefault("COLLAGE_BUILD_DIR", str(builder.build_folder()))
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, env=home)
    assert not list(tmp_path.glob("intel*"))


def test_convolutions_are_direct(toolchain: OpenVinoToolchain) -> None:
    """Lower bounds count on it: Winograd's method would need fewer operations."""
    net = Net()
    x = net.input(1, 64, 56, 56)
    for given in (64, 128, 256):
        taken = 64 if given == 64 else given // 2
        x = net.add("Conv", x, net.randn(given, taken, 3, 3, scale=0.05), pads=[1] * 4)
        x = net.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    module = toolchain.compile(whole(imported(net.model(x)), default_instance(toolchain)))
    steps = toolchain.inside(module)["steps"]
    kernels = [s["kernel"] for s in steps if s["what"] == "Convolution"]
    assert len(kernels) == 3 and not any("wino" in k.lower() for k in kernels), kernels
