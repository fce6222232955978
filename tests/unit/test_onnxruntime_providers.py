"""ONNX Runtime's providers for NVIDIA devices: instances, plans and what an artifact carries."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collage_engine.records.precision import TF32
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains.onnxruntime import providers, toolchain
from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain

ON_DEVICE = Target.cuda("sm_90a")


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> OnnxRuntimeToolchain:
    """The toolchain where both providers and a device are there."""
    for module in (providers, toolchain):
        monkeypatch.setattr(module, "present_providers", lambda: ("cuda", "tensorrt"))
    return OnnxRuntimeToolchain()


def test_without_a_device_it_has_instances_on_the_cpu_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(providers, "cuda_probe", lambda: SimpleNamespace(devices=()))
    monkeypatch.setattr(providers, "provider_libraries", lambda provider: ())
    providers.present_providers.cache_clear()
    try:
        assert OnnxRuntimeToolchain().instances(ON_DEVICE, "float32") == ()
    finally:
        providers.present_providers.cache_clear()
    cpu = OnnxRuntimeToolchain().instances(Target.cpu(2), "float32")
    assert [one.id for one in cpu] == ["onnxruntime"]
    assert all(providers.provider_plan(one) == {} for one in cpu)


def test_products_are_rounded_only_where_a_run_admits_it(both: OnnxRuntimeToolchain) -> None:
    exact = both.instances(ON_DEVICE, "float32")
    assert [one.id for one in exact] == ["onnxruntime"], "TensorRT's provider always rounds"
    rounding = [one for one in both.instances(ON_DEVICE, TF32) if one not in exact]
    assert [one.precision for one in rounding] == [TF32, TF32]
    assert "tensorrt" in rounding[1].id
    for instance, rounded in ((exact[0], "0"), (rounding[0], "1")):
        assert providers.provider_plan(instance)["providers"] == [
            {"name": "cuda", "options": {"use_tf32": rounded}}
        ]
    before_ampere = both.instances(Target.cuda("sm_70"), TF32)
    assert [one.precision for one in before_ampere] == ["float32", "float32"]


def test_what_tensorrt_does_not_take_runs_on_cuda(both: OnnxRuntimeToolchain) -> None:
    plan = providers.provider_plan(both.instances(ON_DEVICE, TF32)[-1])
    assert [one["name"] for one in plan["providers"]] == ["tensorrt", "cuda"]
    assert plan["libraries"].index("libcudart.so.13") < plan["libraries"].index("libnvinfer.so.10")


def test_only_artifacts_for_the_device_carry_its_libraries(
    both: OnnxRuntimeToolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (("libcublas.so.13", Path("/a/libcublas.so.13")),)
    monkeypatch.setattr(toolchain, "provider_libraries", lambda provider: files)
    monkeypatch.setattr(OnnxRuntimeToolchain, "runtime_libraries", lambda self: ())

    def carried(instance: ToolchainInstance) -> list[str]:
        function: Any = SimpleNamespace(instance=instance)
        return [library.name for library in both.libraries_for([function])]

    assert carried(both.instances(Target.cpu(1), "float32")[0]) == []
    assert carried(both.instances(ON_DEVICE, "float32")[0]) == ["libcublas.so.13"]
