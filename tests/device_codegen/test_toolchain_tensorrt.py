"""TensorRT as a toolchain where no device is: probing, modules, artifacts, both runtimes."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from collage_engine.machine.cuda import cuda_probe
from collage_engine.model.importer import import_onnx
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains.runtime import builder
from collage_engine.toolchains.tensorrt import library, python_runtime
from collage_engine.toolchains.tensorrt.toolchain import PYTHON_PART, TensorrtToolchain
from tests import zoo
from tests.support.toolchain_cases import load_again, saved, whole

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "resources" / "models" / "mnist.onnx"
PACKAGES = ("tensorrt_rtx_bindings", "tensorrt_rtx")
ANY = ("tensorrt", "tensorrt_bindings")
pytestmark = [
    pytest.mark.skipif(
        not any(importlib.util.find_spec(name) for name in PACKAGES),
        reason="TensorRT-RTX is not installed (extra test)",
    ),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) for name in ANY) or bool(cuda_probe().devices),
        reason="TensorRT itself, or a device, is here",
    ),
]
AMPERE = ToolchainInstance(toolchain="tensorrt", device="cuda:0", architecture="sm_86")


def test_without_a_device_it_builds_and_says_for_which() -> None:
    state = TensorrtToolchain().probe()
    assert not state.available and state.builds
    assert state.version and state.reason
    assert "no NVIDIA driver" in state.reason and "sm_86" in state.reason
    assert "sm_90" not in state.reason


@pytest.mark.parametrize(
    ("precision", "ids"),
    [
        ("float32", ["tensorrt"]),
        ("int8", ["tensorrt"]),
        ("tf32", ["tensorrt", "tensorrt[precision=tf32]"]),
        ("float16", ["tensorrt", "tensorrt[precision=fp16]"]),
        ("bfloat16", ["tensorrt", "tensorrt[precision=fp16]", "tensorrt[precision=bf16]"]),
    ],
)
@pytest.mark.parametrize("strongly", [False, True])
def test_half_precision_only_where_run_and_release_admit_it(
    precision: str, ids: list[str], strongly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = types.SimpleNamespace(**({} if strongly else {"FP16": 0}))
    trt = types.SimpleNamespace(BuilderFlag=flags)
    release = library.Api(trt, library.Flavour("tensorrt", rtx=False), "10.3")
    monkeypatch.setattr(library, "api", lambda: release)
    ids = [name for name in ids if not (strongly and name.endswith(("fp16]", "bf16]")))]
    found = TensorrtToolchain().instances(Target.cuda("sm_86"), precision)
    assert [instance.id for instance in found] == ids
    assert found[0].precision == "float32"
    assert {instance.architecture for instance in found} == {"sm_86"}


def test_a_module_is_serialised_with_its_engine_and_comes_back() -> None:
    toolchain = TensorrtToolchain()
    module = toolchain.compile(whole(import_onnx(zoo.build("residual_block")), AMPERE))
    _, plan, weights = toolchain.unpack(module)
    assert plan["architecture"] == "sm_86"
    assert plan["engine_bytes"] == len(weights) > 10_000
    assert saved(load_again(module)) == saved(module)
    assert toolchain.inside(module)["title"] == "TensorRT-RTX"


def test_copies_of_a_candidate_are_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    from collage_engine.toolchains.tensorrt import toolchain as own

    built = []
    build = own.build_engine
    monkeypatch.setattr(
        own,
        "build_engine",
        lambda *given: built.append(1) or build(*given),  # type: ignore[func-returns-value]
    )
    toolchain, model = TensorrtToolchain(), import_onnx(zoo.build("tiny"))
    one, copy = (toolchain.compile(whole(model, AMPERE)) for _ in range(2))
    assert len(built) == 1 and saved(one) == saved(copy)
    toolchain.compile(whole(import_onnx(zoo.build("residual_block")), AMPERE))
    assert len(built) == 2


class _Settings:
    """TensorRT 8.6's builder configuration: flags, no architectures."""

    def __init__(self) -> None:
        self.flags = {"TF32"}

    def set_flag(self, flag: str) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: str) -> None:
        self.flags.discard(flag)


@pytest.mark.parametrize(
    ("version", "strongly", "flags"),
    [("8.6.1", False, 1), ("10.13.0", False, 1), ("11.4", True, 0)],
)
def test_releases_say_types_in_their_own_way(version: str, strongly: bool, flags: int) -> None:
    from collage_engine.toolchains.tensorrt.engine import configure, creation_flags

    kinds = {"8.6.1": {"EXPLICIT_BATCH": 0}, "10.13.0": {"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1}}
    builder_flags = {"TF32": "TF32"} | ({} if strongly else {"FP16": "FP16", "INT8": "INT8"})
    trt = types.SimpleNamespace(
        NetworkDefinitionCreationFlag=types.SimpleNamespace(**kinds.get(version, {})),
        BuilderFlag=types.SimpleNamespace(**builder_flags),
    )
    found = library.Api(trt, library.Flavour("tensorrt", rtx=False), version)
    assert found.strongly_typed is strongly and creation_flags(found) == flags
    settings = _Settings()
    configure(found, settings, "sm_90a", {"float32", "int8", "fp16"}, False)
    assert settings.flags == (set() if strongly else {"FP16", "INT8"})
    if not strongly:
        with pytest.raises(ToolchainError, match="computes in no BF16"):
            configure(found, settings, "sm_90a", {"float32", "bf16"}, False)


def test_tensorrt_itself_builds_only_where_the_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    proper = dataclasses.replace(library.api(), flavour=library.Flavour("tensorrt", rtx=False))
    monkeypatch.setattr(library, "api", lambda: proper)
    reason = library.reason_against_architecture("sm_90a")
    assert reason and reason.endswith("there is none here")


def test_a_truncated_engine_is_refused() -> None:
    toolchain = TensorrtToolchain()
    module = toolchain.compile(whole(import_onnx(zoo.build("tiny")), AMPERE))
    symbol, plan, weights = toolchain.unpack(module)
    with pytest.raises(ToolchainError, match="the engine is truncated"):
        toolchain.create(symbol, plan, weights[: plan["engine_bytes"] // 2])


class _Context:
    def __init__(self) -> None:
        self.bound: dict[str, int] = {}
        self.streams: list[int] = []
        self.set = 0

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.set += 1
        self.bound[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        self.streams.append(stream)
        return True


def test_the_python_runtime_binds_addresses_and_enqueues_on_the_callers_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tvm_ffi

    context = _Context()
    opened: list[bytes] = []

    class Runtime:
        def __init__(self, log: Any) -> None:
            pass

        def deserialize_cuda_engine(self, data: bytes) -> Any:
            opened.append(data)
            return types.SimpleNamespace(create_execution_context=lambda: context)

    class ILogger:
        Severity = types.SimpleNamespace(INTERNAL_ERROR=0, ERROR=1)

    fake = types.SimpleNamespace(ILogger=ILogger, Runtime=Runtime)
    monkeypatch.setitem(sys.modules, "tensorrt_double", fake)
    python_runtime.register()
    plan = json.dumps({"library": "tensorrt_double", "inputs": [{}, {}], "outputs": [{}]})
    enqueue = tvm_ffi.get_global_func(python_runtime.NAME)(plan, b"engine")
    assert opened == [b"engine"]
    pointers = [ctypes.c_void_p(address) for address in (0x1000, 0x2000, 0x3000)]
    enqueue(ctypes.c_void_p(0x77), *pointers)
    enqueue(ctypes.c_void_p(0x77), *pointers)
    assert context.bound == {"input0": 0x1000, "input1": 0x2000, "output0": 0x3000}
    assert context.set == 3  # only what changed is bound again
    enqueue(None, pointers[0], ctypes.c_void_p(0x4000), pointers[2])
    assert context.bound["input1"] == 0x4000 and context.set == 4
    assert context.streams == [0x77, 0x77, 0]


def collage(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "collage_engine", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=280,
    )


def test_an_artifact_says_that_it_needs_python(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = collage(
        "place", str(MNIST), "-o", str(out), "--target", "cuda:sm_86", "--toolchains", "tensorrt"
    )
    assert done.returncode == 0, done.stderr
    assert "it needs Python: tensorrt runs through" in " ".join(done.stdout.split())
    manifest = json.loads((out / "manifest.json").read_text())
    (need,) = manifest["requires"]
    assert need["what"] == "python" and need["file"] == PYTHON_PART
    assert need["module"] in PACKAGES and need["version"]
    assert (out / PYTHON_PART).read_bytes() == Path(python_runtime.__file__).read_bytes()
    assert PYTHON_PART not in {about["file"] for about in manifest["libraries"]}
    # The loader that is shipped makes the function known that model.so calls.
    script = (
        "import sys; sys.path.insert(0, sys.argv[1] + '/loader'); import run_artifact, tvm_ffi\n"
        "run_artifact.opened(sys.argv[1])\n"
        "print(tvm_ffi.get_global_func('collage.tensorrt.open') is not None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(out)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "True", done.stderr


def test_the_cpp_loader_refuses_what_needs_python(tmp_path: Path) -> None:
    """Before it loads anything: the reason is the manifest's."""
    import tvm
    import tvm_ffi.libinfo

    from collage_engine.artifact.artifact import LOADERS
    from collage_engine.records.versions import ARTIFACT_FORMAT

    program = tmp_path / "run_artifact"
    tvm_folder = Path(tvm.__file__).parent / "lib"
    ffi_folder = Path(tvm_ffi.libinfo.find_libtvm_ffi()).parent
    subprocess.run(
        [
            *builder.find_compiler().command,
            "-std=c++17",
            "-O0",
            *(f"-I{p}" for p in tvm_ffi.libinfo.include_paths()),
            str(LOADERS / "run_artifact.cc"),
            "-o",
            str(program),
            "-Wl,--no-as-needed",
            f"-L{tvm_folder}",
            "-ltvm_runtime",
            f"-L{ffi_folder}",
            "-ltvm_ffi",
            f"-Wl,-rpath,{tvm_folder}",
            f"-Wl,-rpath,{ffi_folder}",
        ],
        check=True,
    )
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    files = ("model.so", "sample_input.npz", "sample_output.npz", "part.py")
    for name in files:
        (artifact / name).write_bytes(b"")
    manifest = {
        "format": "collage-artifact",
        "format_version": ARTIFACT_FORMAT,
        "tolerance": 1e-4,
        "environment": {},
        "inputs": [],
        "outputs": [],
        "files": {name: {"sha256": hashlib.sha256(b"").hexdigest()} for name in files},
        "requires": [{"file": "part.py", "reason": "because of X"}],
    }
    (artifact / "manifest.json").write_text(json.dumps(manifest))
    done = subprocess.run([str(program), str(artifact)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "runs from Python only: because of X" in done.stderr


def test_a_device_that_rtx_does_not_run_on_is_no_target(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = collage(
        "place", str(MNIST), "-o", str(out), "--target", "cuda:sm_90a", "--toolchains", "tensorrt"
    )
    assert done.returncode != 0 and not out.exists()
    assert "not on sm_90" in done.stderr
