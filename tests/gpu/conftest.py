"""Tests that need an NVIDIA device: skipped, with the reason, where there is none."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from filelock import FileLock

from collage_engine.machine.cuda import choose_target, cuda_probe
from collage_engine.model.importer import import_onnx
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.registry import get, probe


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = cuda_probe().reason
    for item in items:
        if "tests/gpu/" in str(item.path).replace("\\", "/") + "/":
            item.add_marker(pytest.mark.gpu)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def kernels(request: pytest.FixtureRequest) -> None:
    """CUTLASS's kernels for all cases, compiled once by one process before all tests."""
    from tests.gpu.cases import CASES

    if cuda_probe().reason is not None or not probe("cutlass").available:
        return
    if not any("cutlass" in item.name for item in request.session.items):
        return
    cutlass = get("cutlass")
    architecture = choose_target("cuda").architecture
    (instance,) = cutlass.instances(Target.cuda(architecture), "float32")
    for case in CASES:
        for dtype in case.dtypes:
            graph = import_onnx(case.model(dtype)).graph
            everything = [graph.everything]
            cutlass.precompile(graph, instance, everything, lambda what: None, lambda: False)


@pytest.fixture
def device_alone() -> FileLock:
    """Held while a test uses the device, so that no other one disturbs what it times."""
    return FileLock(Path(tempfile.gettempdir()) / "collage-tests-gpu.lock")
