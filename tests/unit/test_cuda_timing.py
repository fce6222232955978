"""Timing on an NVIDIA device, as far as no device is needed."""

from __future__ import annotations

import pytest

from collage_engine.lowering.compile_cuda import copies_wanted
from tests.support.command import python


def test_a_fault_ends_the_child() -> None:
    child = python(
        "from collage_engine.timing.job import end_process, DeviceFault\n"
        "end_process(DeviceFault('an illegal address was read'))"
    )
    assert child.returncode == 70
    assert "an illegal address was read" in child.stderr


@pytest.mark.parametrize(
    ("weights", "model", "cache", "copies"),
    [
        (0, 1 << 30, 50 << 20, 1),  # nothing to keep cold
        (1 << 20, 40 << 20, 50 << 20, 1),  # the whole model stays in the cache
        (50 << 20, 100 << 20, 50 << 20, 3),
        (1 << 20, 100 << 20, 50 << 20, 12),  # no more than memory and patience allow
        (500 << 20, 600 << 20, 50 << 20, 2),
    ],
)
def test_copies_wanted(weights: int, model: int, cache: int, copies: int) -> None:
    assert copies_wanted(weights, model, cache) == copies
