"""The C++ runtimes of NVIDIA's libraries, built against the wheels: made, saved and loaded here."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import cuda_probe
from collage_engine.model.importer import ImportedModel
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.registry import get
from collage_engine.toolchains.runtime import builder, python_host
from tests.device_codegen.cuda_plans import model_of, normal

pytestmark = [
    pytest.mark.skipif(bool(cuda_probe().devices), reason="a device is here"),
    pytest.mark.timeout(1200),  # of compiling, on a slow, busy machine
]


def function(name: str, model: ImportedModel) -> Function:
    toolchain = get(name)
    try:
        toolchain.source()  # type: ignore[attr-defined]
    except ToolchainError as error:
        pytest.skip(str(error))
    (instance,) = toolchain.instances(Target.cuda("sm_90a"), "float32")
    operators = tuple(range(len(model.graph.operators)))
    return function_of(model, instance, operators, "candidate")


def made_and_loaded(name: str, given: Function) -> list[dict[str, Any]]:
    """The steps that a module tells of after it was saved and loaded."""
    import tvm_ffi

    toolchain: Any = get(name)
    module = toolchain.compile(given)
    parts = toolchain.unpack(module)
    load = tvm_ffi.get_global_func(f"ffi.Module.load_from_bytes.{module.kind}")
    again = load(bytes(module["collage.save"]()))
    assert toolchain.unpack(again) == parts
    kinds = [given.input_type(i) for i in given.inputs]
    kinds += [given.output_type(i) for i in given.outputs]
    arrays = [np.zeros(kind.shape, kind.dtype) for kind in kinds]
    with pytest.raises(Exception, match="CUDA device"):
        again["candidate"](*arrays)
    described = toolchain.inside(again)
    assert not described["ready"]  # nothing is chosen where there is no device
    steps: list[dict[str, Any]] = described["steps"]
    return steps


def test_cublas() -> None:
    model = model_of(
        "float[4,8] x",
        "p = MatMul(x, u) q = Add(p, b) r = Relu(q) s = MatMul(r, w) y = Add(s, x)",
        u=(8, 16),
        b=(16,),
        w=(16, 8),
    )
    plain = function("cublas", model)
    said = {
        "float32": "float32",
        "tf32": "tf32",
        "float16": "fast float16",
        "bfloat16": "fast bfloat16",
    }
    for precision, compute in said.items():
        instances = get("cublas").instances(Target.cuda("sm_90a"), precision)
        assert instances[-1].precision == precision
        given = replace(plain, instance=instances[-1])
        plan, _ = get("cublas").plan(given)  # type: ignore[attr-defined]
        assert {step["compute"] for step in plan["steps"]} == {compute}
        steps = made_and_loaded("cublas", given)  # what the runtime does not know, it refuses
        assert [step["what"] for step in steps] == ["matmul", "matmul"]


@pytest.mark.slow
@pytest.mark.skipif(
    "COLLAGE_LONG_TESTS" not in os.environ,
    reason="its front end takes a minute to compile; run it with COLLAGE_LONG_TESTS=1",
)
def test_cudnn() -> None:
    model = model_of(
        "float[2,8,6,6] x",
        "p = Conv<pads=[1, 1, 1, 1]>(x, w, b) q = Add(p, x) r = Relu(q) "
        "y = ConvTranspose<strides=[2, 2]>(r, u)",
        w=(8, 8, 3, 3),
        b=(8,),
        u=(8, 4, 2, 2),
    )
    given = function("cudnn", model)
    assert [s["what"] for s in made_and_loaded("cudnn", given)] == ["conv", "deconv"]
    model = model_of(
        "float16[1,8,16] x, float16[1,1,8,8] m",
        "a = MatMul(x, u) q = Reshape(a, s) b = MatMul(x, v) k = Reshape(b, s) "
        "c = MatMul(x, w) t = Reshape(c, s) "
        "d = Transpose<perm=[0, 2, 1, 3]>(q) e = Transpose<perm=[0, 2, 3, 1]>(k) "
        "f = MatMul(d, e) g = Add(f, m) h = Softmax<axis=-1>(g) "
        "i = Transpose<perm=[0, 2, 1, 3]>(t) y = MatMul(h, i)",
        s=np.array([1, 8, 2, 8]),
        **{name: normal(16, 16, dtype="float16") for name in "uvw"},
    )
    given = function("cudnn", model)
    assert [s["what"] for s in made_and_loaded("cudnn", given)] == ["matmul", "attention"]


def test_cudnn_finds_its_parts_beside_the_runtime(tmp_path: Path) -> None:
    """It opens them by name when first called, and aborts where they are not there."""
    toolchain: Any = get("cudnn")
    try:
        source = toolchain.source()
    except ToolchainError as error:
        pytest.skip(str(error))
    for name, file in source.beside:
        (tmp_path / name).symlink_to(file)
    code = (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); "
        "library.cudnnGetVersion.restype = ctypes.c_size_t; print(library.cudnnGetVersion())"
    )
    clean = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / toolchain.library_name)],
        capture_output=True,
        text=True,
        env=clean,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 90000


def test_a_session_on_a_device_is_given_the_stream_and_addresses(tmp_path: Path) -> None:
    import tvm_ffi

    session = tmp_path / "session.py"
    session.write_text(
        "def open_model(engine, threads, options):\n"
        "    return lambda stream, addresses: f'{engine} {stream} {addresses}'\n"
    )
    python_host.register("a_test", session)
    opener = python_host.opener_name("a_test")
    kind: Any = {"shape": [2], "dtype": "float32"}
    plan: Any = {"library": "TensorRT", "opener": opener, "options": {}, "threads": 1}
    text = json.dumps({**plan, "on_device": True, "inputs": [kind], "outputs": [kind]})
    run = tvm_ffi.get_global_func(opener)(text, b"engine")
    assert run(None, ctypes.c_void_p(64), ctypes.c_void_p(128)) == "b'engine' 0 [64, 128]"
    create = tvm_ffi.get_global_func(f"{builder.load(get('tensorrt').source())}.create")
    module = create("part", text, b"engine")
    with pytest.raises(Exception, match="not on the CUDA device"):
        module["part"](np.zeros(2, "float32"), np.zeros(2, "float32"))
