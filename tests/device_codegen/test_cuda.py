"""Placing for an NVIDIA device where there is none: compiled and exported, marked unmeasured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collage_engine.lowering.cubin import compile_cubin
from collage_engine.machine.cuda import cuda_probe
from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.runtime.cuda import nvrtc
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
    assert module.count(head) == 1
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
