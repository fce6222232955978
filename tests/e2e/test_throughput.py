"""Objectives other than latency through the command line, on a model of three operators."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.support.caches import fresh_cache
from tests.support.command import collage, python
from tests.support.json_schemas import assert_fits
from tests.support.toolchain_models import convolutions

FEW = ("--toolchains", "onnxruntime", "--no-in-model", "--budget", "40s", "--confirm", "quick")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("throughput")
    fresh_cache(made / "cache")
    onnx.save(convolutions(), made / "model.onnx")
    return made


@pytest.fixture(scope="module")
def placed(folder) -> dict:
    """The document of a run that shares two processors."""
    done = collage(
        f"place {folder / 'model.onnx'} -o {folder / 'out'} --objective "
        f"throughput --threads 2 --session {folder / 's.collage'} --json",
        *FEW,
        cache=folder / "cache",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_way_of_sharing_the_processors_is_tried_and_the_best_is_exported(placed, folder):
    assert_fits("place", "run", placed)
    tried = {(row["streams"], row["threads"]): row["items_per_s"] for row in placed["deployments"]}
    assert set(tried) == {(2, 1), (1, 2)} and all(rate > 0 for rate in tried.values())
    chosen = tried[placed["streams"], placed["threads"]]
    assert chosen == max(tried.values())  # all rates are those of common turns
    assert chosen == pytest.approx(1e6 / placed["placement"]["measured_us"])
    manifest = json.loads((folder / "out/manifest.json").read_text())
    assert manifest["streams"] == placed["streams"] and manifest["threads"] == placed["threads"]
    assert manifest["objective"] == "throughput"
    assert manifest["spin"] is (placed["streams"] == 1)  # several instances would take turns
    assert manifest["expected"]["runs_per_s"] == pytest.approx(chosen)


def test_the_artifact_runs_as_many_instances_as_were_chosen(placed, folder):
    done = collage(f"run {folder / 'out'} --benchmark --json", cache=folder / "cache")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert_fits("run", "result", result)
    assert result["streams"] == placed["streams"] and result["runs_per_s"] > 0
    code = (
        "import sys; sys.path.insert(0, sys.argv[1] + '/loader'); import run_artifact;"
        "p = run_artifact.load(sys.argv[1], streams=3); print(p.streams, len(p.at_once(id)))"
    )
    done = python(code, folder / "out")
    assert done.stdout.split() == ["3", "3"], done.stderr


def test_p99_is_that_of_single_calls(folder):
    done = collage(
        f"place {folder / 'model.onnx'} -o {folder / 'tail'} --objective p99 --threads 1 --json",
        *FEW,
        cache=folder / "cache",
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["objective"] == "p99" and not run["deployments"]
    expected = json.loads((folder / "tail/manifest.json").read_text())["expected"]
    assert expected.get("latency_us") is None
    assert expected["p99_us"] == run["placement"]["measured_us"] > 0
