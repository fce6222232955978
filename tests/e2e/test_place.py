"""The main job through the command line, as a user runs it, on MNIST."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from collage_engine import api
from collage_engine.cli.main import main
from collage_engine.store.session_file import load_session
from collage_engine.store.store import Store
from tests.support.caches import fresh_cache
from tests.support.command import collage, started
from tests.support.json_schemas import assert_fits
from tests.support.toolchain_models import X, convolutions

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "resources" / "models" / "mnist.onnx"
QUICK = ("--no-in-model", "--confirm", "quick")
"""For runs whose point is neither what costs rest on nor the confirmation."""
TWO = ("--no-in-model", "--toolchains", "onnxruntime,onednn", "--threads", "1")
"""For runs that need no whole catalog either."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return fresh_cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def placed(cache, tmp_path_factory) -> tuple[dict, Path, Path]:
    """The document of a cold run, the artifact and the session."""
    folder = tmp_path_factory.mktemp("placed")
    done = collage(
        f"place {MNIST} -o {folder / 'out'} --json --session {folder / 's.collage'}",
        cache=cache,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder / "out", folder / "s.collage"


def test_the_partitions_cover_every_node_once(placed):
    document, _, _ = placed
    assert_fits("place", "run", document)
    nodes = [n for part in document["placement"]["partitions"] for n in part["nodes"]]
    assert sorted(nodes) == list(range(document["model"]["nodes"]))


def test_the_document_has_what_is_promised(placed):
    document, out, _ = placed
    placement = document["placement"]
    assert placement["measured_us"] > 0
    assert placement["additive_error_us"] == pytest.approx(
        placement["measured_us"] - placement["estimated_us"]
    )
    assert document["max_rel_error"] < 1e-4
    assert document["artifact"] == str(out)
    seconds = document["seconds"]
    assert set(seconds) >= {"import", "enumerate", "measure", "search", "confirm", "total"}
    counts = document["candidates"]
    assert counts["enumerated"] >= counts["distinct"] > 0
    assert counts["measured"] > 0
    parts = ("measured", "from_trials", "from_store", "skipped")
    assert counts["distinct"] == sum(counts[part] for part in parts)
    assert counts["from_trials"] > 0
    names = {base["name"]: base for base in document["baselines"]}
    for toolchain in document["toolchains"]:
        if toolchain["available"]:
            assert names[toolchain["name"]]["kind"] == "whole-model"
    assert {base["kind"] for base in document["baselines"]} >= {"whole-model", "fuseops", "greedy"}
    for base in document["baselines"]:
        assert (base["measured_us"] is None) == (base["reason"] is not None)


def test_costs_are_those_within_the_model(placed):
    """What was seen in covers that ran, or is predicted from it; none without having looked."""
    _, _, session = placed
    costs = [c.cost for c in load_session(session).candidates if c.cost.usable]
    seen = [cost for cost in costs if cost.in_model == "seen"]
    predicted = [cost for cost in costs if cost.in_model == "predicted"]
    assert seen and predicted and all((cost.median_us or 0) > 0 for cost in seen + predicted)
    assert all((cost.us or 0) >= (cost.median_us or 0) * 0.999 for cost in predicted)


def test_the_second_run_measures_nothing_anew_and_joins_the_session(placed, cache, tmp_path):
    document, _, session = placed
    again = tmp_path / "again.collage"
    shutil.copyfile(session, again)
    options = ("--session", again, "--confirm", "quick")
    done = collage(f"place {MNIST} -o {tmp_path / 'out'}", *options, cache=cache)
    assert done.returncode == 0, done.stderr
    assert "Confirming end to end" in done.stderr
    assert "Confirming" not in done.stdout
    assert "against →" in done.stdout
    assert "\x1b" not in done.stdout
    with api.load_session(again) as both:
        first, second = both.runs
    assert first.id == document["id"]
    counts = second.candidates
    assert counts.measured == 0
    assert counts.from_trials + counts.from_store + counts.skipped == counts.distinct
    assert counts.skipped == document["candidates"]["skipped"], "left out for the same reasons"
    compared = collage(f"compare {again} {first.id} {second.id} --json", cache=cache)
    assert compared.returncode == 0, compared.stderr
    comparison = json.loads(compared.stdout)
    assert comparison["a"] == document["id"]
    assert_fits("compare", "comparison", comparison)


def test_the_artifact_runs_and_agrees(placed, cache):
    _, out, _ = placed
    done = collage(f"run {out} --benchmark --json", cache=cache)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert_fits("run", "result", result)
    assert result["max_rel_error"] < 1e-4
    assert result["median_us"] > 0


@pytest.fixture(scope="module")
def placed_with_wishes(cache, tmp_path_factory) -> tuple[dict, Path]:
    """The document and artifact of a run with pins, inputs and a placement of the user's own."""
    folder = tmp_path_factory.mktemp("wishes")
    model, good, mine = folder / "model.onnx", folder / "good.npz", folder / "mine.json"
    onnx.save(convolutions(), model)
    np.savez(good, **{onnx.load(model).graph.input[0].name: np.ones(X, np.float32)})
    mine.write_text(json.dumps({"first": "onednn", "relu": "onednn", "last": "onnxruntime"}))
    pins = ("--pin", "fir*=onednn", "--pin", "last=!onnxruntime")
    files = ("--inputs", good, "--placement", mine, "--budget", "60s")
    done = collage(f"place {model} -o {folder / 'out'} --json", *TWO, *pins, *files, cache=cache)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder / "out"


def test_pins_are_honoured_and_priced(placed_with_wishes):
    document, _ = placed_with_wishes
    assert_fits("place", "run", document)
    for part in document["placement"]["partitions"]:
        if "first" in part["onnx_nodes"]:
            assert part["toolchain"] == "onednn"
        if "last" in part["onnx_nodes"]:
            assert part["toolchain"] != "onnxruntime"
    assert [pin["state"] for pin in document["pins"]] == ["honoured", "honoured"]
    assert all(pin["price_us"] >= 0 for pin in document["pins"])


def test_a_placement_of_the_users_own_is_a_baseline(placed_with_wishes):
    document, _ = placed_with_wishes
    user = [b for b in document["baselines"] if b["kind"] == "user"]
    assert len(user) == 1 and user[0]["measured_us"] > 0


def test_inputs_of_the_user_are_taken(placed_with_wishes):
    _, out = placed_with_wishes
    (sample,) = np.load(out / "sample_input.npz").values()
    assert sample.shape == X and (sample == 1).all()


def test_explain_compare_report_and_export_work_on_the_session(
    placed, cache, tmp_path, monkeypatch
):
    _, _, session = placed
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(cache))
    explained = collage(f"explain {session} Convolution28", cache=cache)
    assert explained.returncode == 0, explained.stderr
    assert "µs" in explained.stdout
    compared = collage(f"compare {session} last last", cache=cache)
    assert compared.returncode == 0 and "0 nodes moved" in compared.stdout
    for kind in ("html", "csv", "json", "svg", "graphml"):
        assert main(["report", str(session), "-o", str(tmp_path / f"r.{kind}")]) == 0
        assert (tmp_path / f"r.{kind}").stat().st_size > 500
    exported = collage(f"export {session} -o {tmp_path / 'again'}", cache=cache)
    assert exported.returncode == 0, exported.stderr
    assert collage(f"run {tmp_path / 'again'}", cache=cache).returncode == 0


def test_a_second_interrupt_ends_the_run_and_keeps_what_was_measured(tmp_path):
    cache = fresh_cache(tmp_path / "fresh")
    process = started("place", MNIST, "-o", tmp_path / "out", *TWO, cache=cache)
    end = time.monotonic() + 120
    stored = 0
    while stored < 5 and time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
        if (cache / "measurements.db").exists():
            with Store(cache / "measurements.db") as store:
                stored = store.info().measurements
    process.send_signal(signal.SIGINT)  # asks for the best placement so far
    assert process.stderr is not None
    assert any("another Ctrl-C" in line for line in process.stderr), "it ended by itself"
    process.send_signal(signal.SIGINT)  # and this for the end, at once
    _, said = process.communicate(timeout=100)
    assert process.returncode == 130, said
    assert "cancelled" in said
    after = json.loads(collage("store info --json", cache=cache).stdout)["measurements"]
    assert after >= stored >= 5
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_look_at_the_toolchains_tells_no_falsehoods(tmp_path, number):
    """Also when the terminal sends the signal to all of its processes."""
    process = started("toolchains", cache=tmp_path / "cache", start_new_session=True)
    end = time.monotonic() + 60
    while not psutil.Process(process.pid).children():  # the first probes
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, number)
    printed, said = process.communicate(timeout=100)
    assert process.returncode == 130, said
    assert printed == "" and said.strip() == "collage: interrupted"
