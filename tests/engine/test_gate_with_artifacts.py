"""``collage check`` on real artifacts: a slowed one fails; errors and memory count, too."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from collage_engine.cli.main import main
from collage_engine.model.importer import import_model
from tests.support.artifact_cases import MNIST, artifact_of
from tests.support.covers import candidate_on
from tests.support.plain_toolchain import PLAIN, register
from tests.support.slowed_artifact import slowed_copy

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    with pytest.MonkeyPatch.context() as patch:
        register(patch)
        model = import_model(MNIST)
        cover = [candidate_on(PLAIN, tuple(range(len(model.graph.operators))))]
        return artifact_of(model, cover, folder)


@pytest.fixture(scope="module")
def slowed(artifact):
    return slowed_copy(artifact, artifact.with_name("slowed"), 1.5)


def test_a_slowed_artifact_fails_and_says_by_how_much(artifact, slowed, capsys):
    assert main(["check", str(slowed), "--against", str(artifact), "--json"]) == 1
    latency, error = json.loads(capsys.readouterr().out)["checks"]
    assert latency["outcome"] == "failed" and error["outcome"] == "passed"
    assert latency["value"] > 1.2 and latency["low"] > 1.03
    assert latency["us"] > latency["baseline_us"] > 0


def test_the_faster_one_of_two_passes(artifact, slowed, capsys):
    limits = ["--max-error", "1e-3", "--max-memory", "4G"]
    assert main(["check", str(artifact), "--against", str(slowed), "--json", *limits]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [check["outcome"] for check in document["checks"]] == ["passed"] * 3


def test_the_action_in_the_examples_is_a_gate(artifact: Path, tmp_path: Path) -> None:
    """Its command runs, on less time, and writes the files that its later steps read."""
    action = yaml.safe_load((ROOT / "resources" / "examples" / "github-action.yml").read_text())
    steps = action["jobs"]["speed"]["steps"]
    (command,) = [step["run"] for step in steps if step.get("run", "").startswith("collage check")]
    assert "--budget 2m" in command
    command = command.replace("--budget 2m", "--budget 20s")
    shutil.copyfile(ROOT / "resources" / "models" / "mnist.onnx", tmp_path / "model.onnx")
    shutil.copytree(artifact, tmp_path / "released")
    done = subprocess.run(
        [sys.executable, "-m", "collage_engine", *shlex.split(command)[1:]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode in (0, 1), done.stderr
    (uploaded,) = [step["with"]["path"] for step in steps if "upload" in step.get("uses", "")]
    assert ElementTree.parse(tmp_path / uploaded).getroot().tag == "testsuite"
    shown = [step["run"].split()[1] for step in steps if "SUMMARY" in step.get("run", "")]
    assert all((tmp_path / name).read_text().strip() for name in shown) and shown
