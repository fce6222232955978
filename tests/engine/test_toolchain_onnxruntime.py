"""ONNX Runtime through its C API: results, settings, and that each table position is right."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from collage_engine.machine.cuda import cuda_probe
from collage_engine.records.errors import ToolchainError
from collage_engine.records.precision import TF32
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains.onnxruntime.toolchain import LEVELS, OnnxRuntimeToolchain
from collage_engine.toolchains.runtime import builder
from tests.support.command import python
from tests.support.toolchain_cases import (
    Net,
    available,
    check_whole,
    default_instance,
    imported,
    load_again,
    one_node,
    run,
    saved,
    tensors,
    whole,
)
from tests.support.toolchain_models import MODELS, X, small_net

F32 = np.float32


@pytest.fixture(scope="module")
def toolchain() -> OnnxRuntimeToolchain:
    return available(OnnxRuntimeToolchain())


@pytest.mark.parametrize("level", ["all", "basic", "extended", "none"])
@pytest.mark.parametrize("name", MODELS)
def test_results(toolchain: OnnxRuntimeToolchain, name: str, level: str) -> None:
    instance = default_instance(toolchain)
    if level != "all":
        instance = ToolchainInstance(toolchain="onnxruntime", config=(("level", level),))
    check_whole(toolchain, MODELS[name], instance, 1e-5)


def test_instances_are_its_optimisation_levels(toolchain: OnnxRuntimeToolchain) -> None:
    ids = [i.id for i in toolchain.instances(Target.cpu(2), "float32")]
    assert ids == ["onnxruntime", "onnxruntime[level=basic]"]
    assert all(i.threads == 2 for i in toolchain.instances(Target.cpu(2), "float32"))


@pytest.mark.skipif(bool(cuda_probe().devices), reason="a device is here")
def test_without_cuda_a_session_for_a_device_says_what_is_missing(
    toolchain: OnnxRuntimeToolchain,
) -> None:
    on_device = ToolchainInstance(
        toolchain="onnxruntime", device="cuda:0", architecture="sm_90a", precision=TF32
    )
    with pytest.raises(ToolchainError, match=r"cannot load lib\w+\.so\.\d+"):
        toolchain.compile(whole(imported(one_node("Relu", X)), on_device))


def test_unknown_level_is_refused(toolchain: OnnxRuntimeToolchain) -> None:
    net = imported(one_node("Relu", X))
    instance = ToolchainInstance(toolchain="onnxruntime", config=(("level", "heroic"),))
    with pytest.raises(ToolchainError, match="heroic"):
        toolchain.compile(whole(net, instance))


def test_inside_shows_what_the_optimiser_made(toolchain: OnnxRuntimeToolchain) -> None:
    """Slots 11 and 23: only an optimised session folds the activation into the convolution."""
    net = imported(small_net())
    operators = {}
    for level in ("none", "basic", "all"):
        instance = ToolchainInstance(toolchain="onnxruntime", config=(("level", level),))
        inside = toolchain.inside(toolchain.compile(whole(net, instance)))
        assert inside["optimization_level"] == LEVELS[level]
        operators[level] = [s["what"] for s in inside["steps"]]
    assert "Relu" in operators["none"]
    assert "Relu" not in operators["all"]
    assert len(operators["all"]) <= len(operators["basic"]) + 2


def test_bad_setting_is_reported(toolchain: OnnxRuntimeToolchain) -> None:
    """Slot 130: an impossible configuration entry is the library's own error."""
    spec = {"shape": list(X), "dtype": "float32"}
    plan = {
        "inputs": [spec],
        "outputs": [spec],
        "input_names": ["x0"],
        "output_names": ["relu0_0"],
        "threads": 1,
        "spin": False,
        "session_config": {"": "x"},
    }
    with pytest.raises(ToolchainError, match="Config key is empty"):
        toolchain.create("f", plan, one_node("Relu", X).SerializeToString())


def test_broken_model_is_reported(toolchain: OnnxRuntimeToolchain) -> None:
    plan = {
        "inputs": [],
        "outputs": [],
        "input_names": [],
        "output_names": [],
        "threads": 1,
        "spin": False,
    }
    with pytest.raises(ToolchainError, match="protobuf parsing failed"):
        toolchain.create("f", dict(plan), b"no model at all")
    plan |= {"input_names": ["x0"]}
    with pytest.raises(ToolchainError, match="names do not match"):
        toolchain.create("f", plan, one_node("Relu", X).SerializeToString())


def test_wrong_names_are_reported_when_run(toolchain: OnnxRuntimeToolchain) -> None:
    import tvm_ffi

    spec = {"shape": list(X), "dtype": "float32"}
    plan = {
        "inputs": [spec],
        "outputs": [spec],
        "input_names": ["nobody"],
        "output_names": ["relu0_0"],
        "threads": 1,
        "spin": False,
    }
    module = toolchain.create("f", plan, one_node("Relu", X).SerializeToString())
    tensor = tvm_ffi.from_dlpack(np.zeros(X, F32))
    with pytest.raises(RuntimeError, match="nobody"):
        module["f"](tensor, tensor)


def test_values_are_made_once_per_address(toolchain: OnnxRuntimeToolchain) -> None:
    net = imported(small_net())
    function = whole(net, default_instance(toolchain))
    module = toolchain.compile(function)
    feeds = net.random_inputs(0)
    copies = [{k: v.copy() for k, v in feeds.items()} for _ in range(3)]
    calls = [tensors(function, c)[0] for c in copies]
    for _ in range(10):
        for arguments in calls:
            module[function.symbol](*arguments)
    # One input at three addresses, one output at three: each bound once, none per call.
    assert toolchain.inside(module)["tensors_made"] == 6


def test_other_thread_counts_get_their_own_pool() -> None:
    """The first module's settings own the process's pool; other settings still work."""
    script = """
        import os
        from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
        from tests.support.toolchain_models import small_net
        from tests.support.toolchain_cases import default_instance, imported, whole
        toolchain = OnnxRuntimeToolchain()
        net = imported(small_net())
        threads = lambda: len(os.listdir("/proc/self/task"))
        kept, shared, grown = [], [], []
        for count, spin in ((2, False), (2, False), (3, False), (2, True), (1, False)):
            function = whole(net, default_instance(toolchain, count), spin=spin)
            before = threads()
            kept.append(toolchain.compile(function))
            grown.append(threads() - before)
            shared.append(toolchain.inside(kept[-1])["shared_pool"])
        print(shared, grown[1:])
    """
    done = python(script, check=True)
    assert done.stdout.strip().splitlines()[-1] == str(
        ([True, True, False, False, False], [0, 2, 1, 0])
    )[1:-1].replace("], [", "] [")


def test_pythons_onnxruntime_lives_beside_it(toolchain: OnnxRuntimeToolchain) -> None:
    """Both orders in one process; our copy is opened once, under its SONAME."""
    script = """
        import sys
        if sys.argv[1] == "first":
            import onnxruntime
        from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
        from tests.support.toolchain_models import small_net
        from tests.support.toolchain_cases import (
            default_instance, error, imported, reference, run, whole
        )
        toolchain, model = OnnxRuntimeToolchain(), small_net()
        net = imported(model)
        function = whole(net, default_instance(toolchain))
        modules = [toolchain.compile(function) for _ in range(2)]
        feeds = net.random_inputs(0)
        truth = reference(model, function, feeds)
        assert error(run(modules[1], function, feeds)[0], truth[0]) < 1e-5
        maps = {line.split()[-1] for line in open("/proc/self/maps") if "libonnxruntime.so" in line}
        assert len(maps) == 1, maps
    """
    for order in ("first", "second"):
        code = textwrap.dedent(script)
        subprocess.run([sys.executable, "-c", code, order], check=True)


def unlinked_files(least: int) -> set[str]:
    """Addresses of mapped files without a name of at least so many bytes."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        place = line.split()[0]
        begin, end = (int(each, 16) for each in place.split("-"))
        if line.endswith("(deleted)") and end - begin >= least:
            found.add(place)
    return found


def test_large_models_leave_memory_once_loaded(toolchain: OnnxRuntimeToolchain) -> None:
    """A loaded module keeps its model in a file, and still gives it back."""
    net = Net()
    y = net.add("MatMul", net.input(1, 1500), net.randn(1500, 1500))
    model = imported(net.model(y))
    function = whole(model, default_instance(toolchain))
    before = unlinked_files(9_000_000)
    module = load_again(toolchain.compile(function))
    assert unlinked_files(9_000_000) - before
    assert len(saved(module)) > 9_000_000
    assert run(load_again(module), function, model.random_inputs(0))[0].shape == (1, 1500)


def test_library_missing_beside_the_runtime_is_said(
    toolchain: OnnxRuntimeToolchain, tmp_path: Path
) -> None:
    """Without libonnxruntime.so.1 beside it, loading a module says so."""
    runtime = builder.build(toolchain.source())
    copy = tmp_path / runtime.path.name
    copy.write_bytes(runtime.path.read_bytes())
    script = f"""
        import ctypes, tvm_ffi
        ctypes.CDLL({str(copy)!r})
        tvm_ffi.get_global_func("{runtime.kind}.check")()
    """
    done = python(script)
    assert done.returncode != 0
    assert "cannot load ONNX Runtime" in done.stderr
