"""Placing for an NVIDIA device where there is none: compiled and exported, marked unmeasured."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.candidates import catalog
from collage_engine.lowering.cubin import compile_cubin, with_own_integers
from collage_engine.lowering.executable import Executable
from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import CudaDevice, CudaProbe, TargetChoice, cuda_probe
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.registry import described, get
from collage_engine.toolchains.runtime import cuda
from collage_engine.toolchains.runtime.cuda import nvrtc
from collage_engine.toolchains.tvm import toolchain
from tests.device_codegen.cuda_plans import model_of, normal
from tests.gpu.figures import COLLAGE, COMPILED, EAGER, table
from tests.gpu.models import MODELS
from tests.support.command import collage

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "resources" / "models" / "mnist.onnx"
CUDA_ELF = 190
"""e_machine of a cubin."""


pytestmark = pytest.mark.skipif(not nvrtc(), reason="no CUDA compiler here")
no_device = pytest.mark.skipif(bool(cuda_probe().devices), reason="a device is here")


def test_a_cubin_is_device_code() -> None:
    code = compile_cubin('extern "C" __global__ void f(float* a) { a[threadIdx.x] *= 2; }', "sm_80")
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == CUDA_ELF


def test_a_compiler_error_is_a_reason() -> None:
    with pytest.raises(ToolchainError, match=r"refuses the kernels: .*error"):
        compile_cubin('extern "C" __global__ void f() { nonsense; }', "sm_80")


def test_a_missing_header_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cuda.against_kernels("sm_90a") is None
    for folder in cuda.cuda_includes():
        for header in (*folder.glob("*.h*"), *folder.glob("crt/*.h*")):
            copy = tmp_path / header.relative_to(folder)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(header, copy)
    monkeypatch.setattr(cuda, "cuda_includes", lambda: [tmp_path])
    assert cuda.against_kernels("sm_90a") is None  # nothing of CCCL is needed
    shutil.rmtree(tmp_path / "crt")
    reason = cuda.against_kernels("sm_90a") or ""
    assert reason.startswith("its kernels in float16 on tensor cores need crt/")
    assert reason.endswith("pip install nvidia-cuda-crt")
    (tmp_path / "cuda_fp16.h").unlink()
    reason = "its kernels in float16 need cuda_fp16.h: pip install nvidia-cuda-runtime"
    assert cuda.against_kernels("sm_90a") == reason


def test_a_run_does_not_begin_without_what_kernels_need(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "its kernels in float16 need cuda_fp16.h: pip install nvidia-cuda-runtime"
    monkeypatch.setattr(toolchain, "against_kernels", lambda architecture: reason)
    device = CudaDevice(0, "NVIDIA H200", (9, 0), 1 << 37, 1 << 25, 13000)
    monkeypatch.setattr(toolchain, "cuda_probe", lambda: CudaProbe((device,)))
    state = described(get("tvm").probe(), get("tvm").about)
    assert state.available and state.devices == ("cpu",) and not state.serves("cuda")
    monkeypatch.setattr(catalog, "probe_all", lambda *_, **__: (state,))
    model = model_of("float[4] x", "y = Relu(x)")
    target = TargetChoice("cuda", "sm_90a", device)
    with pytest.raises(
        ToolchainError, match=r"TVM does not run on cuda here: .*nvidia-cuda-runtime"
    ):
        catalog.make_catalog(model, RunSettings(), target)
    assert catalog.make_catalog(model, RunSettings(), TargetChoice("cpu")).candidates


def sources_of(nodes: str, count: int) -> list[str]:
    """The CUDA source of each kernel of a small model on TVM."""
    square = {"v": normal(64, 64, dtype="float16")} if "v" in nodes else {}
    model = model_of("float16[8,64] x, float16[64] w", nodes, **square)
    (instance,) = get("tvm").instances(Target.cuda("sm_80"), "float32")
    function = function_of(model, instance, tuple(range(count)), "candidate")
    lowered = get("tvm").lower(function)  # type: ignore[attr-defined]
    (library,) = Executable(lowered, "sm_80").mod.imports
    return [module.inspect_source("cuda") for module in library.imports]


def test_each_kernel_is_compiled_by_itself_and_shared_by_all_modules() -> None:
    larger = sources_of("s = MatMul(x, v) t = Softmax<axis=-1>(s) y = MatMul(t, w)", 3)
    alone = sources_of("y = Softmax<axis=-1>(x)", 1)
    assert len(larger) == 3 and len(alone) == 1 and alone[0] in larger
    # TVM's preamble asks for headers of CCCL, which cost ten times as much as the kernel itself.
    assert all("<cuda/std/cstdint>" in source for source in larger)
    assert "cuda/std" not in with_own_integers(larger[0])


@no_device
def test_place_without_a_device_exports_a_cubin_marked_unmeasured(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = collage(f"place {MNIST} -o {out} --target cuda:sm_90a --json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["winner"] == "unmeasured"
    assert document["target"] == "cuda:sm_90a"
    assert document["placement"]["measured_us"] is None
    assert document["placement"]["estimated_us"] is None
    assert document["candidates"]["measured"] == 0
    covered = sorted(n for part in document["placement"]["partitions"] for n in part["nodes"])
    assert covered == list(range(document["model"]["nodes"]))
    assert any("nothing was measured" in text for text in document["warnings"])

    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["architecture"] == "sm_90a" and manifest["device"] == "cuda"
    assert manifest["unmeasured"]
    assert manifest["expected"]["latency_us"] is None
    module = (out / "model.so").read_bytes()
    head = (5).to_bytes(8, "little") + b"cubin"
    assert module.count(head) == len(set(re.findall(rb"\w+_kernel\b", module)))
    code = module[module.index(b"\x7fELF", module.index(head)) :]
    assert int.from_bytes(code[18:20], "little") == CUDA_ELF
    assert b"__global__" not in module

    run = collage(f"run {out}")
    assert run.returncode == 1
    assert "runs on an NVIDIA device (sm_90a)" in run.stderr


@no_device
def test_a_partition_pinned_to_the_host_is_exported_with_its_copies(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = collage(
        f"place {MNIST} -o {out} --target cuda:sm_90a --json --pin ReLU32=@cpu --pin Plus30=@cuda:0"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [pin["state"] for pin in document["pins"]] == ["honoured", "honoured"]
    placement = document["placement"]
    assert [p["device"] for p in placement["partitions"]] == ["cuda:0", "cpu", "cuda:0"]
    assert [(c["source"], c["target"]) for c in placement["conversions"]] == [
        ("plain", "host"),
        ("host", "plain"),
    ]
    manifest = json.loads((out / "manifest.json").read_text())
    carried = {library["file"] for library in manifest["libraries"]}
    assert "libcudart.so.13" in carried and (out / "libcudart.so.13").exists()
    assert any(name.startswith("libcollage_host_") for name in carried)
    module = (out / "model.so").read_bytes()
    for call in (b"take.0", b"run.0", b"give.1"):
        assert b"vm.builtin.collage_host." + call in module


@no_device
def test_a_toolchain_that_is_not_for_the_target_is_wrong_usage(tmp_path: Path) -> None:
    done = collage(f"place {MNIST} -o {tmp_path / 'out'} --target cuda --toolchains onednn")
    assert done.returncode == 2
    assert "onednn does not compile for cuda" in done.stderr


@no_device
def test_a_session_says_what_is_missing_and_measures_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    session = ["bash", ROOT / "tests" / "gpu" / "session.sh", tmp_path / "out"]
    done = subprocess.run(session, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "a device: " in done.stdout and "nothing was measured" in done.stdout
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"log", "missing.txt"}


def test_a_session_goes_on_with_the_figures_that_are_missing(tmp_path: Path) -> None:
    ours, theirs = {"median_us": 400.0, "max_rel_error": 1e-3}, {"median_us": 500.0}
    subjects = {COLLAGE: ours, COMPILED: theirs | {"ours_to_it": 0.8}, EAGER: {"failed": "no"}}
    figures = {"complete": True, "subjects": subjects}
    (tmp_path / "bert_base-float16.json").write_text(json.dumps(figures))
    *rows, left = table(tmp_path)
    assert rows[2] == "| bert_base | float16 | 400 | 500 | – | 0.800 | 1.0e-03, –, – |"
    assert rows[3] == "| geometric mean of 1 | float16 | | | | 0.800 | |"
    assert "bert_base float16" not in left and left.count("float") == 2 * len(MODELS) - 1
