"""A loaded artifact's memory lies on huge pages, where the kernel has them, by both loaders."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collage_engine.artifact.artifact import write_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.build.build import build_cover, write_module
from collage_engine.build.built import MODULE_FILE
from collage_engine.lowering.npz import write_npz
from collage_engine.machine.worker import Worker
from collage_engine.model.importer import import_onnx
from collage_engine.records.memory import MemorySeen
from collage_engine.trials.trial_job import OpenPlacement, PeakMemory
from tests.support.artifact_cases import cover_in_turn, run_cpp, sample_of
from tests.support.bare_python import run_bare
from tests.support.huge_pages_cases import MIB, huge_bytes, why_not
from tests.zoo.net import Net

WIDTH, LAYERS = 1024, 4
WEIGHTS = WIDTH * WIDTH * LAYERS * 4

BARE = """
import json, sys
sys.path.insert(0, "loader")
import numpy, tvm, run_artifact
def huge():
    return sum(int(line.split()[1]) * 1024 for line in open("/proc/self/smaps_rollup")
               if line.startswith("AnonHugePages"))
before = huge()
model = run_artifact.load(".", **json.loads(sys.argv[1]))
print(json.dumps({"grown": huge() - before, "said": model.huge_pages}))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(model, built module's folder, contents, artifact): 17 MB of weights on TVM."""
    net = Net("huge", seed=43)
    x = net.input("x", [8, WIDTH])
    for _ in range(LAYERS):
        x = net.op("Relu", net.dense(x, WIDTH, WIDTH))
    net.output(x)
    model = import_onnx(net.model())
    contents = sample_of(model)
    folder = tmp_path_factory.mktemp("huge")
    write_module(build_cover(model, cover_in_turn(model, ["tvm"])), folder / "built")
    return (
        model,
        folder / "built",
        contents,
        write_artifact(model, folder / "built", folder / "artifact", contents),
    )


@pytest.fixture
def supported(monkeypatch):
    monkeypatch.delenv("COLLAGE_HUGE_PAGES", raising=False)
    if (reason := why_not()) is not None:
        pytest.skip(reason)


def test_the_python_loader_without_this_project(made, site, supported):
    def loaded(**how: bool):
        done = run_bare(site, "-c", BARE, json.dumps(how), cwd=made[3])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    found = loaded()
    size, seconds, reason = found["said"]
    assert WEIGHTS / 2 < size <= found["grown"] and seconds > 0 and reason is None
    assert loaded(huge_pages=False)["said"] == [0, 0.0, "not wanted"]


def test_the_engine_says_what_moved(made, supported, monkeypatch):
    found = run_artifact(made[3])["huge_pages"]
    assert found["bytes"] > WEIGHTS / 2 and found["reason"] is None
    monkeypatch.setenv("COLLAGE_HUGE_PAGES", "0")
    assert run_artifact(made[3])["huge_pages"]["reason"] == "COLLAGE_HUGE_PAGES=0"


def test_an_artifact_whose_sample_is_gone_loads_without(made, site, tmp_path):
    """Deployed without its samples, it has nothing to be run on."""
    folder = shutil.copytree(
        made[3], tmp_path / "deployed", ignore=shutil.ignore_patterns("sample_*.npz")
    )
    done = run_bare(site, "-c", BARE, "{}", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["said"][0] == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="not Linux")
def test_the_cpp_loader(cpp_loader, made, supported):
    """Looked at from outside, while it times itself for as long as it is let."""
    with subprocess.Popen(
        [str(cpp_loader), str(made[3]), "--benchmark", "--calls", "1000000000"],
        env={},
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            seen, end = 0, time.monotonic() + 120
            while seen < WEIGHTS / 2 and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
                with contextlib.suppress(OSError):
                    seen = huge_bytes(Path(f"/proc/{process.pid}/smaps_rollup").read_text())
        finally:
            process.kill()
    assert seen >= WEIGHTS / 2
    done = run_cpp(cpp_loader, str(made[3]))
    assert done.returncode == 0 and "MB on huge pages" in done.stdout, done.stdout
    done = run_cpp(cpp_loader, str(made[3]), "--no-huge-pages")
    assert done.returncode == 0 and "nothing on huge pages: not wanted" in done.stdout


def test_a_contender_is_timed_as_it_will_be_deployed(made, supported, tmp_path, monkeypatch):
    """Its memory figures are what they are without, but for a few pages."""
    model, built, contents, _ = made
    write_npz(tmp_path / "inputs.npz", contents.inputs)
    write_npz(tmp_path / "outputs.npz", contents.outputs)
    request = OpenPlacement(
        module=str(built / MODULE_FILE),
        sample=str(tmp_path),
        inputs=tuple((name, kind.dtype) for name, kind in model.inputs),
        outputs=tuple((name, kind.dtype) for name, kind in model.outputs),
    )

    def seen() -> MemorySeen:
        with Worker(
            "collage_engine.trials.trial_job:TrialJob",
            env={"TVM_USE_RUNTIME_LIB": "1"},
            name="contender",
        ) as worker:
            errors = worker.call(request, 300.0, None).by_output
            assert all(relative < 1e-4 for _, relative in errors.values())
            return worker.call(PeakMemory(), 300.0, None)

    moved = seen()
    monkeypatch.setenv("COLLAGE_HUGE_PAGES", "0")
    left = seen()
    assert moved.huge_bytes > WEIGHTS / 2 and left.huge_bytes == 0
    for name in ("private_bytes", "loaded_bytes", "load_peak_bytes", "run_peak_bytes"):
        assert getattr(moved, name) < getattr(left, name) + 12 * MIB, name
