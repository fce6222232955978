"""A run gives an answer however little time it has, and when it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest

from collage_engine import api
from collage_engine.store.store import Store
from tests.support.caches import fresh_cache
from tests.support.command import collage, started
from tests.support.toolchain_models import convolutions

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "resources" / "models" / "mnist.onnx"
SOME = ("onnxruntime", "onednn")
"""Toolchains of runs whose point is not the whole catalog."""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache without measurements of any kind."""
    return fresh_cache(tmp_path / "cache", constants=False)


def check_artifact(folder: Path, document: dict[str, Any]) -> None:
    assert document["artifact"] == str(folder)
    assert api.run_artifact(folder)["max_rel_error"] < 1e-4
    nodes = [n for part in document["placement"]["partitions"] for n in part["nodes"]]
    assert sorted(nodes) == list(range(document["model"]["nodes"]))


def test_three_seconds_and_an_empty_store_give_the_fastest_toolchain_that_was_timed(
    cache: Path, tmp_path: Path
) -> None:
    process = started(
        "place", MNIST, "-o", tmp_path / "out", "--budget", "3s", "--json", cache=cache
    )
    printed, said = process.communicate(timeout=280)
    assert process.returncode == 0, said
    document = json.loads(printed)
    check_artifact(tmp_path / "out", document)
    assert document["ended"] == "budget"
    assert document["placement"]["measured_us"] > 0
    left = document["unmeasured"]
    assert "measure" in left["stages"]
    assert left["candidates"] == document["candidates"]["unreached"] > 0
    assert 0.9 < left["share"] <= 1.0, "hardly anything was measured, and the document says so"
    timed = [base for base in document["baselines"] if base["measured_us"]]
    assert timed
    for base in document["baselines"]:
        assert (base["measured_us"] is None) == (base["reason"] is not None)


def test_the_first_interrupt_keeps_the_best_placement_so_far(cache: Path, tmp_path: Path) -> None:
    process = started(
        *("place", MNIST, "-o", tmp_path / "out", "--json", "--session", tmp_path / "s.collage"),
        cache=cache,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("Timing whole models"):
            break
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "another Ctrl-C cancels at once" in said
    document = json.loads(printed)
    check_artifact(tmp_path / "out", document)
    assert document["ended"] == "stopped"
    assert document["confirmation"] in ("quick", "trial")
    with api.load_session(tmp_path / "s.collage") as session:
        (run,) = session.runs
        assert run.id == document["id"] and not run.provisional


def test_a_run_whose_process_is_killed_goes_on_and_is_exported(cache: Path, tmp_path: Path) -> None:
    """The system kills the process that takes most memory: nobody's fault, and no cost is lost."""
    options = ["--budget", "30s", "--threads", 1, "--toolchains", ",".join(SOME), "--json"]
    process = started("place", MNIST, "-o", tmp_path / "out", *options, cache=cache)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("Timing whole models"):
            break
    with Store(cache / "measurements.db") as store:
        before = {one.key for one in store.measurements()}
    names = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            names[child.name(), child.ppid() == process.pid] = child
    names["pipeline", False].kill()
    printed, said = process.communicate(timeout=280)
    assert process.returncode == 0, said
    check_artifact(tmp_path / "out", json.loads(printed))
    with Store(cache / "measurements.db") as store:
        assert before <= {one.key for one in store.measurements()}


def test_after_a_pin_a_quick_confirmation_compares_with_the_run_before(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(cache))
    onnx.save(convolutions(), tmp_path / "model.onnx")
    with api.open_model(tmp_path / "model.onnx") as session:
        quick = api.RunSettings(toolchains=SOME, threads=1, in_place=False, confirmation="quick")
        first = session.place(quick)
        assert first.placement is not None
        used = first.placement.partitions[0].toolchain
        other = "onednn" if used != "onednn" else "onnxruntime"
        session.pin(f"first={other}")
        second = session.place(
            api.RunSettings(toolchains=SOME, threads=1, confirmation="quick"), out=tmp_path / "out"
        )
    assert second.confirmation == "quick"
    (verdict,) = second.pins
    assert verdict.state == "honoured"
    assert second.placement is not None and second.placement.measured_us
    holder = next(p for p in second.placement.partitions if "first" in p.onnx_nodes)
    assert holder.toolchain == other
    assert "calibrate" not in second.seconds
    before = {part.candidate for part in first.placement.partitions}
    covers = [second.placement, *second.rivals]
    cover_sets = [{part.candidate for part in cover.partitions} for cover in covers]
    timed = [base for base in second.baselines if base.measured_us]
    assert before in [*cover_sets, *(set(base.candidates) for base in timed)]
    others = {
        frozenset(base.candidates) for base in timed if set(base.candidates) not in cover_sets
    }
    assert timed, "the best baseline is timed"
    assert len(others) <= 1, (
        "no baseline beside the best one and those with a placement's very cover"
    )
    assert api.run_artifact(tmp_path / "out")["max_rel_error"] < 1e-4


def test_strict_exports_nothing_while_others_compute(cache: Path, tmp_path: Path) -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        done = collage("place", MNIST, "-o", tmp_path / "out", "--strict", cache=cache)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if "--strict" in line]
    assert "other programs use" in said and "run it again" in said
    assert not (tmp_path / "out").exists()
