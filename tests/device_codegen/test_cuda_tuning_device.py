"""Tuning where a device is, on one that is pretended (``fake_cuda``): it runs kernels on the
CPU and says nothing about how fast they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.machine.cuda import cuda_probe
from tests.device_codegen.fake_cuda.machine import environment, headers

ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("COLLAGE_LONG_TESTS") == "1"
pytestmark = [
    pytest.mark.skipif(bool(cuda_probe().devices), reason="a device is here"),
    pytest.mark.skipif(headers() is None, reason="no CUDA headers here"),
    pytest.mark.skipif(not LONG, reason="COLLAGE_LONG_TESTS=1 tunes on the pretended device"),
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("device")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **environment(folder), "PYTHONPATH": os.pathsep.join(paths)}


def test_kernels_are_built_compared_and_timed_in_a_child(machine: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.device_codegen.tuning_on_device"],
        cwd=ROOT,
        env=machine,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert all(0 < seconds < 1 for seconds in (*told["times"], *told["again"]))
    assert "wrong numbers" in told["refused"]["another product"]
    assert told["refused"]["no code"]


def test_place_with_a_budget_for_tuning_ends_well(machine: dict[str, str], tmp_path: Path) -> None:
    out, caches = tmp_path / "out", {"COLLAGE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "collage_engine",
            "place",
            "resources/models/mnist.onnx",
            "-o",
            str(out),
            "--target",
            "cuda",
            "--toolchains",
            "tvm",
            "--budget",
            "4m",
            "--tune-budget",
            "4m",
            "--json",
        ],
        cwd=ROOT,
        env=machine | caches,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    assert document["max_rel_error"] < 1e-4
    # How far it gets in its budget is a matter of the machine: kernels run on the CPU here.
    assert "tuning" in document
