"""What only runs where a device is, run on one that is pretended (``fake_cuda``).

TVM's own CUDA runtime, its VM and CUDA graphs, our timers, copies and loaders are the real ones;
driver, CUDA runtime and compiler are stand-ins, so nothing here says how fast anything is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collage_engine.machine.cuda import cuda_probe
from tests.device_codegen.fake_cuda.machine import environment, headers

ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("COLLAGE_LONG_TESTS") == "1"
pytestmark = [
    pytest.mark.skipif(bool(cuda_probe().devices), reason="a device is here"),
    pytest.mark.skipif(headers() is None, reason="no CUDA headers here"),
    pytest.mark.timeout(1500),  # of compiling, on a slow, busy machine
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("device")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **environment(folder), "PYTHONPATH": os.pathsep.join(paths)}


def run(machine: dict[str, str], what: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.device_codegen.pretended_target", what, str(folder)],
        cwd=ROOT,
        env=machine,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def test_a_placement_with_a_partition_on_the_host_runs_from_its_export(
    machine: dict[str, str], tmp_path: Path
) -> None:
    told = run(machine, "mixed", tmp_path)
    assert max(told["errors"]) < 1e-5
    # One graph before the host's turn and one behind it, made in the first call only.
    assert told["graphs"] == 2
    assert told["allocated"][-1] == 0  # nor is anything allocated any more
    assert [name for name in told["kernels"] if "collage_host" in name] == [
        "vm.builtin.collage_host.run.0"
    ]
    assert told["architecture"] == "sm_90a"
    assert "libcudart.so.13" in told["libraries"]
    assert any(name.startswith("libcollage_host_") for name in told["libraries"])


def test_a_candidate_is_timed_in_a_graph_and_copies_are_timed(
    machine: dict[str, str], tmp_path: Path
) -> None:
    told = run(machine, "timed", tmp_path)
    assert told["right"] and told["cuda_graph"]
    assert told["seconds"] > 0
    copies = told["copies"]
    # The pretended link: 5 µs and 25 GB/s.
    assert copies["copy:to-host:byte"] >= 0.9 / 25e3
    assert copies["copy:to-host:call"] >= 4.0 and copies["copy:to-device:call"] >= 4.0


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="takes minutes; run it with COLLAGE_LONG_TESTS=1")
@pytest.mark.parametrize("pin", ["", "ReLU32=@cpu"])
def test_the_whole_way_with_a_device(machine: dict[str, str], tmp_path: Path, pin: str) -> None:
    out = tmp_path / "out"
    command = [
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
        "6m",
        "--json",
        *(["--pin", pin] if pin else []),
    ]
    caches = {"COLLAGE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=ROOT, env=machine | caches, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    assert document["device"].startswith("Pretended H200")
    assert document["max_rel_error"] < 1e-4
    parts = document["placement"]["partitions"]
    assert any(p["device"] == "cuda:0" for p in parts)
    if pin:
        assert document["pins"][0]["state"] == "honoured"
        assert [p["device_why"] for p in parts if p["device"] == "cpu"][:1] == ["pin"]
        assert {c["target"] for c in document["placement"]["conversions"]} == {"host", "plain"}
    ran = subprocess.run(
        [sys.executable, "-m", "collage_engine", "run", str(out), "--json"],
        cwd=ROOT,
        env=machine | caches,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout)["max_rel_error"] < 1e-4
