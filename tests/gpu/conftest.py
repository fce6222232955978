"""Tests that need an NVIDIA device: skipped, with the reason, where there is none."""

from __future__ import annotations

import pytest

from collage_engine.machine.cuda import cuda_probe


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = cuda_probe().reason
    for item in items:
        if "tests/gpu/" in str(item.path).replace("\\", "/") + "/":
            item.add_marker(pytest.mark.gpu)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
