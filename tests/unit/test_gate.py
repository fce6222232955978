"""``collage check``: what it finds, what it lets pass, and what it writes for CI."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest

from collage_engine.artifact import paired_times
from collage_engine.artifact.paired_times import judge, pair_ratio
from collage_engine.cli import check_command
from collage_engine.cli.main import main
from collage_engine.records.answers import GateCheck
from tests.support.json_schemas import assert_fits

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "gate_rounds.json").read_text())
"""Rounds of an artifact against itself: by pairs the medians in microseconds of ``timed_pair``."""
RUNS = 2000


def outcomes(slowdown: float, spread: float = 1.0, runs: int = RUNS) -> list[str]:
    """Compare, again and again, pairs drawn from the recorded ones, one side slowed down.

    The other artifact is either side of a pair with equal right: a ratio and its inverse.
    """
    logs = [pair_ratio(*pair) for pair in RECORDED]
    draw = random.Random(1)
    found = []
    for _ in range(runs):
        seen: list[float] = []
        outcome = None
        while outcome is None:
            log = draw.choice(logs) * draw.choice((1, -1)) * spread
            seen.append(log + math.log1p(slowdown))
            outcome = judge(seen, 0.03)
        found.append(outcome)
    return found


def test_a_slowdown_of_five_percent_is_found_in_95_of_100_runs():
    assert outcomes(0.05).count("failed") >= 0.95 * RUNS


def test_equal_artifacts_are_called_slower_in_at_most_2_of_100_runs():
    assert outcomes(0.0).count("failed") <= 0.02 * RUNS


def test_on_a_machine_that_is_far_too_noisy_equal_artifacts_tie():
    logs = [pair_ratio(*pair) for pair in RECORDED]
    noisy = 0.15 / (sum(log * log for log in logs) / len(logs)) ** 0.5
    runs = RUNS // 8  # most of them take as many pairs as may be taken
    assert outcomes(0.0, noisy, runs).count("tie") >= 0.5 * runs


def compared(monkeypatch, outcome: str, ratio: float, wrong: str | None = None) -> None:
    """Have artifacts compare so, whatever they are, on a machine called "this"."""
    opened = {"max_rel_error": 1e-5, "wrong": wrong, "memory_bytes": 40_000_000}
    found = GateCheck(
        name="latency",
        outcome=outcome,
        value=ratio,
        limit=1.03,
        low=ratio * 0.99,
        high=ratio * 1.01,
        pairs=6,
        us=ratio * 1e3,
        baseline_us=1e3,
    )
    manifest = {
        "expected": {"latency_us": 900.0, "machine": "another"},
        "threads": 1,
        "target": "cpu",
        "device": "cpu",
        "tolerance": 1e-4,
        "files": {},
    }
    monkeypatch.setattr(check_command, "is_artifact", lambda folder: True)
    monkeypatch.setattr(check_command, "timed_manifest", lambda folder: manifest)
    monkeypatch.setattr(check_command, "read_manifest", lambda folder: manifest)
    monkeypatch.setattr(check_command, "compare_artifacts", lambda *_: (found, opened))


@pytest.mark.parametrize(
    ("outcome", "ratio", "options", "status", "failed"),
    [
        ("passed", 1.0, [], 0, []),
        ("tie", 1.04, [], 0, []),
        ("failed", 1.05, [], 1, ["latency"]),
        ("passed", 1.0, ["--max-error", "1e-6"], 1, ["error"]),
        ("passed", 1.0, ["--max-memory", "30M"], 1, ["memory"]),
        ("failed", 1.05, ["--max-memory", "30M"], 1, ["latency", "memory"]),
        ("passed", 1.0, ["--max-memory", "50M", "--max-error", "1e-3"], 0, []),
    ],
)
def test_status_and_files_say_what_failed(
    monkeypatch, tmp_path, capsys, outcome, ratio, options, status, failed
):
    compared(monkeypatch, outcome, ratio)
    junit, page = tmp_path / "check.xml", tmp_path / "check.md"
    files = ["--junit", str(junit), "--markdown", str(page)]
    assert main(["check", "new", "--against", "old", "--json", *files, *options]) == status
    document = json.loads(capsys.readouterr().out)
    assert_fits("check", "gate", document)
    assert [c["name"] for c in document["checks"] if c["outcome"] == "failed"] == failed
    assert document["outcome"] == ("failed" if failed else outcome)
    suite = ElementTree.parse(junit).getroot()
    assert [case.get("name") for case in suite if case.find("failure") is not None] == failed
    assert suite.get("failures") == str(len(failed))
    assert len(suite.findall("testcase/skipped")) == (outcome == "tie")
    assert outcome in page.read_text()


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        ({}, True),
        ({"model.so": "2"}, False),
        ({"libx.so": "2"}, False),
        ({"loader/a.h": "2", "libcollage_custom_op.so": "2"}, True),
        ({"environment": {"TVM_NUM_THREADS": "2"}}, False),
    ],
)
def test_two_exports_of_one_placement_are_equal_without_being_timed(
    monkeypatch, capsys, changed, is_same
):
    compared(monkeypatch, "failed", 1.11)

    def manifest(folder):
        hashes = {"model.so": "1", "libx.so": "1", "loader/a.h": "1"}
        about = {"environment": {}, "requires": [], "device": "cpu", "tolerance": 1e-4}
        for key, value in (changed if str(folder) == "new" else {}).items():
            (about if key == "environment" else hashes)[key] = value
        return about | {"files": {name: {"sha256": text} for name, text in hashes.items()}}

    monkeypatch.setattr(check_command, "read_manifest", manifest)
    monkeypatch.setattr(
        check_command,
        "run_artifact",
        lambda folder: {"max_rel_error": 1e-5, "memory_bytes": 40_000_000},
    )
    monkeypatch.setattr(check_command, "busy", lambda: "other programs use 90 % of it")
    assert main(["check", "new", "--against", "old"]) == (0 if is_same else 1)
    said = capsys.readouterr().out
    assert ("equal: both are the same module" in said) == is_same
    assert ("other programs use 90 %" in said) != is_same


def test_what_cannot_be_compared_has_status_2(tmp_path, capsys):
    assert main(["check", str(tmp_path), "--against", str(tmp_path / "no.collage")]) == 2
    assert "no.collage" in capsys.readouterr().err


def test_a_session_without_its_model_is_not_compared(tmp_path, capsys):
    session = Path(__file__).parents[1] / "data" / "mnist.collage"
    assert main(["check", str(tmp_path / "new.onnx"), "--against", str(session)]) == 2
    assert "is gone or has changed" in capsys.readouterr().err


def test_pairs_are_loaded_until_the_mean_is_known(monkeypatch, tmp_path):
    loaded = []

    def pair(folders, manifests):
        loaded.append(folders)
        us = 1.1e-3 if folders[0].name == "slow" else 1e-3
        return {"max_rel_error": 1e-6, "wrong": None}, ([us] * 6, [1e-3 + len(loaded) * 1e-7] * 6)

    monkeypatch.setattr(paired_times, "timed_pair", pair)
    monkeypatch.setattr(paired_times, "timed_manifest", lambda folder: {})
    slow, _ = paired_times.compare_artifacts(tmp_path / "slow", tmp_path / "same", 0.03)
    assert slow.outcome == "failed" and slow.pairs == paired_times.LEAST_PAIRS == len(loaded)
    assert slow.value == pytest.approx(1.1, abs=0.01) and slow.low < slow.value < slow.high
    same, _ = paired_times.compare_artifacts(tmp_path / "same", tmp_path / "same", 0.03)
    assert same.outcome == "passed"
