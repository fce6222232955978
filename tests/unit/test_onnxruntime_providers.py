"""ONNX Runtime's provider for NVIDIA devices: instances, plans and what an artifact carries."""

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
def with_provider(monkeypatch: pytest.MonkeyPatch) -> OnnxRuntimeToolchain:
    """The toolchain where the provider and a device are there."""
    monkeypatch.setattr(providers, "has_provider", lambda: True)
    return OnnxRuntimeToolchain()


def test_without_a_device_it_has_instances_on_the_cpu_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(providers, "cuda_probe", lambda: SimpleNamespace(devices=()))
    monkeypatch.setattr(providers, "provider_libraries", lambda: ())
    providers.has_provider.cache_clear()
    try:
        assert OnnxRuntimeToolchain().instances(ON_DEVICE, "float32") == ()
    finally:
        providers.has_provider.cache_clear()
    cpu = OnnxRuntimeToolchain().instances(Target.cpu(2), "float32")
    assert [one.id for one in cpu] == ["onnxruntime"]
    assert all(providers.provider_plan(one) == {} for one in cpu)


def test_products_are_rounded_only_where_a_run_admits_it(
    with_provider: OnnxRuntimeToolchain,
) -> None:
    (exact,) = with_provider.instances(ON_DEVICE, "float32")
    assert exact.id == "onnxruntime"
    plain, rounding = with_provider.instances(ON_DEVICE, TF32)
    assert plain == exact and rounding.precision == TF32
    for instance, rounded in ((exact, "0"), (rounding, "1")):
        assert providers.provider_plan(instance)["use_tf32"] == rounded
    before_ampere = with_provider.instances(Target.cuda("sm_70"), TF32)
    assert [one.precision for one in before_ampere] == ["float32"]


def test_only_artifacts_for_the_device_carry_its_libraries(
    with_provider: OnnxRuntimeToolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (("libcublas.so.13", Path("/a/libcublas.so.13")),)
    monkeypatch.setattr(toolchain, "provider_libraries", lambda: files)
    monkeypatch.setattr(OnnxRuntimeToolchain, "runtime_libraries", lambda self: ())

    def carried(instance: ToolchainInstance) -> list[str]:
        function: Any = SimpleNamespace(instance=instance)
        return [library.name for library in with_provider.libraries_for([function])]

    assert carried(with_provider.instances(Target.cpu(1), "float32")[0]) == []
    assert carried(with_provider.instances(ON_DEVICE, "float32")[0]) == ["libcublas.so.13"]
