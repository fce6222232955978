"""The benchmark on a device, rehearsed with canned answers: what it keeps, resumes and says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collage_engine.records.errors import CollageError
from tests.gpu import bench
from tests.gpu.subjects import COLLAGE, COMPILED, EAGER, Open, Opened
from tests.gpu.table import alone, table


def baseline(name: str, kind: str, us: float | None) -> dict[str, Any]:
    return {"name": name, "kind": kind, "measured_us": us, "reason": None if us else "refused"}


DOCUMENT = {
    "device": "NVIDIA H200",
    "winner": "collage",
    "warnings": [],
    "candidates": {},
    "seconds": {},
    "placement": {
        "partitions": [{"toolchain": "cudnn"}, {"toolchain": "tvm"}, {"toolchain": "cudnn"}],
        "estimated_us": 95.0,
        "measured_us": 100.0,
        "additive_error_us": 5.0,
    },
    "baselines": [
        baseline("tvm", "whole-model", 180.0),
        baseline("cudnn", "whole-model", None),
        baseline("greedy cudnn → tvm", "greedy", 125.0),
        baseline("tvm FuseOps", "fuseops", 170.0),
        baseline("greedy cudnn → cublas → tvm", "greedy", 110.0),
    ],
    "toolchains": [
        {"name": "tvm", "available": True, "version": "0.27", "reason": None},
        {"name": "tensorrt", "available": False, "version": None, "reason": "not installed"},
    ],
}


class Lab:
    """A machine whose ``collage place`` and timed processes answer from a script."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.placed = 0
        self.status = 0
        self.opening: dict[str, Callable[[], None]] = {}
        self.calls: dict[str, list[float]] = {s: [] for s in bench.SUBJECTS}
        self.times = {COLLAGE: 100.0, EAGER: 300.0, COMPILED: 150.0}
        lab = self

        class Worker:
            def __init__(self, target: str, **_: Any) -> None:
                self.subject = ""

            def call(self, request: Any, timeout_s: float) -> Any:
                if isinstance(request, Open):
                    self.subject = request.subject
                    lab.opening.get(request.subject, lambda: None)()
                    return Opened(max_rel_error=1e-6)
                times = lab.calls[self.subject]
                times.append(lab.times[self.subject] + len(times) % 3 - 1)
                if lab.times[self.subject] < 0:
                    raise CollageError("it crashed: an illegal address")
                return times[-1]

            def close(self) -> None:
                pass

        def place(command: list[str], **_: Any) -> Any:
            self.placed += 1
            self.command = command
            artifact = Path(command[command.index("-o") + 1])
            if self.status == 0:
                artifact.mkdir(exist_ok=True)
                (artifact / "manifest.json").write_text("{}")
            return subprocess.CompletedProcess(command, self.status, json.dumps(DOCUMENT))

        monkeypatch.setattr(bench, "Worker", Worker)
        monkeypatch.setattr(subprocess, "run", place)

    def run(self, *more: str) -> int:
        (self.folder / "dcgan-float16.onnx").write_bytes(b"a model")
        return bench.main(["dcgan", "float16", "--out", str(self.folder), "--target", "cpu", *more])

    def row(self) -> dict[str, Any]:
        (row,) = bench.rows_in(self.folder)
        return row


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    return Lab(monkeypatch, tmp_path)


def test_one_call_gives_a_row_and_the_next_does_nothing_again(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.run() == bench.DONE
    row = lab.row()
    assert row["median_us"] == {COLLAGE: 100.0, EAGER: 300.0, COMPILED: 150.0}
    assert row["missing"] == {"tensorrt": "not installed"} and row["errors"][COLLAGE] == 1e-6
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("| dcgan")]
    assert "| 100.0 | 3: cudnn+tvm | cudnn 125.0 (-20.0%) | cudnn 125.0, tvm 170.0 |" in line
    assert line.endswith("| 300.0 | 150.0 | +5.0% |")
    budget = int(lab.command[lab.command.index("--budget") + 1].removesuffix("s"))
    assert budget <= 7.5 * 60 - bench.AFTER_MEASURING_S
    assert lab.run() == bench.DONE and lab.placed == 1
    assert len(lab.calls[COLLAGE]) == bench.ROUNDS


def test_time_that_is_up_is_another_call(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lab.run("--minutes", "1") == bench.MORE and lab.placed == 0
    monkeypatch.setattr(bench, "TIMING_S", 1e9)
    assert lab.run() == bench.MORE and lab.placed == 1 and "median_us" in lab.row()
    monkeypatch.setattr(bench, "TIMING_S", 100.0)
    assert lab.run("--minutes", "2") == bench.DONE and lab.placed == 1
    assert lab.run("--again") == bench.DONE and lab.placed == 2


def test_what_cannot_be_timed_is_a_reason_not_an_end(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise CollageError("ModuleNotFoundError: No module named 'torch'\nTraceback …")

    lab.opening[EAGER] = missing
    lab.times[COMPILED] = -1.0  # fails in its first round
    assert lab.run() == bench.DONE
    row = lab.row()
    assert row["median_us"] == {COLLAGE: 100.0}
    assert row["failed"] == {
        EAGER: "ModuleNotFoundError: No module named 'torch'",
        COMPILED: "it crashed: an illegal address",
    }
    printed = capsys.readouterr().out
    assert "| – | – | +5.0% |" in printed
    assert "- dcgan float16, torch eager: ModuleNotFoundError" in printed


def test_compiling_that_takes_too_long_gets_two_more_calls(lab: Lab) -> None:
    def slow() -> None:
        raise CollageError("no answer within 300 s")

    lab.opening[COMPILED] = slow
    assert [lab.run(), lab.run(), lab.run()] == [bench.MORE, bench.MORE, bench.DONE]
    assert lab.placed == 1 and set(lab.row()["median_us"]) == {COLLAGE, EAGER}


def test_a_run_that_fails_is_tried_three_times(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.status = 1
    assert [lab.run(), lab.run(), lab.run()] == [bench.MORE, bench.MORE, bench.FAILED]
    assert "collage place ended with 1" in capsys.readouterr().err
    lab.status = 0
    assert lab.run() == bench.DONE


def test_toolchains_alone() -> None:
    assert alone({"baselines": DOCUMENT["baselines"]}) == {"tvm": 170.0, "cudnn": 125.0}
    unplaced = {"model": "dcgan", "precision": "float32"}
    assert "| dcgan | float32 | – | –: – | – | – | – | – | – |" in table([unplaced])
