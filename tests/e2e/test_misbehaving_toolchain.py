"""A toolchain that crashes, hangs, is slow, lies or eats memory costs itself only, wherever it is.

Every case is a whole run of the command line on three operators, of which the toolchain ``evil``
can run one and ONNX Runtime all: it must end with a placement, within its time.
``COLLAGE_LONG_TESTS=1`` tries every way to misbehave at every place. Probes that fail or hang are
tried by ``unit/test_probe_memory.py``, candidates that are measured by themselves by
``engine/test_timing_real_children.py``: a run measures none that was slow in a whole model.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import onnx
import pytest

from tests.support.caches import fresh_cache
from tests.support.command import collage
from tests.support.evil_session import COMPUTING, MODES, PLACES, REACHED, VARIABLE
from tests.support.evil_toolchain import install
from tests.support.toolchain_models import convolutions
from tests.support.written import written

LONG = bool(os.environ.get("COLLAGE_LONG_TESTS"))
PATIENCE = float(os.environ.get("COLLAGE_PATIENCE", "1"))
"""How many times as long a run may take: more than 1 on a machine that much else uses."""
LONGEST_S = 480.0 * PATIENCE
"""Seconds of a run whose toolchain hangs at several places in turn, on a busy machine."""
BUDGET = f"{200 * PATIENCE:.0f}s"
"""Of a run, which comes to its end before; it is long so that every place is reached."""
pytestmark = pytest.mark.timeout(500 * PATIENCE)

FEW = [("abort", "transition")]
EVERY = [
    (mode, place)
    for place in PLACES
    for mode in MODES
    if not (mode == "garbage" and place in (*COMPUTING, "import", "rules"))
]
"""Garbage is ``wrong`` where something is computed, and a reason where rules judge."""
ASKED = ("import", "instances", "supports", "partition_spec", "rules")
"""Places at which it is asked about the model: it is left out for the whole run then."""
IN_NO_PLACEMENT = ("build", "trial", *ASKED)
"""Places at which a toolchain that fails cannot be part of a placement."""
FAILS = ("abort", "segfault", "exit", "hang")


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """Return what the environment of a command line needs to have the toolchain."""
    return {"PYTHONPATH": install(tmp_path_factory.mktemp("evil") / "site")}


@pytest.mark.parametrize(("mode", "place"), EVERY if LONG else FEW)
def test_a_toolchain_that_misbehaves_costs_itself_only(environment, tmp_path, mode, place):
    out, cache = tmp_path / "out", fresh_cache(tmp_path / "cache", constants=False)
    onnx.save(convolutions(), tmp_path / "model.onnx")
    command = ["place", tmp_path / "model.onnx", "-o", out, "--toolchains", "evil,onnxruntime"]
    command += ["--budget", BUDGET, "--json", "--no-in-model", "--threads", "1"]
    if place in ASKED:  # elsewhere not, since it measures nothing where the whole model has a time
        command += ["--confirm", "quick"]
    began = time.monotonic()
    about = {VARIABLE: f"{mode}@{place}", REACHED: str(tmp_path / "reached")}
    done = collage("", *command, cache=cache, timeout=LONGEST_S, **environment | about)
    assert done.returncode == 0, f"after {time.monotonic() - began:.0f} s: {done.stderr}"
    run = json.loads(done.stdout)
    used = {part["toolchain"] for part in run["placement"]["partitions"]}
    if place in IN_NO_PLACEMENT and mode in FAILS:
        assert "evil" not in used
    assert "onnxruntime" in used and (out / "manifest.json").exists()
    assert "Traceback" not in done.stderr and "a defect" not in done.stderr
    assert (tmp_path / "reached").exists(), "the run ended before it came to this place"
    if place in ASKED and mode in (*FAILS, "wrong", "garbage"):
        assert any("evil is left out of this run" in warning for warning in run["warnings"])


def test_a_toolchain_that_hangs_leaves_the_others_the_time_of_a_short_budget(environment, tmp_path):
    text = "(float[1,8,64,64] x) => (z) { [relu] y = Relu(x) [add] z = Add(y, x) }"
    onnx.save(written(text), tmp_path / "model.onnx")
    cache = fresh_cache(tmp_path / "cache", constants=False)
    command = ["place", tmp_path / "model.onnx", "-o", tmp_path / "out", "--threads", "1", "--json"]
    command += ["--toolchains", "evil,onnxruntime"]

    def placed(mode: str, budget: str) -> dict[str, Any]:
        about = {VARIABLE: mode, REACHED: str(tmp_path / "reached")}
        more = ("--budget", budget)
        done = collage("", *command, *more, cache=cache, timeout=LONGEST_S, **environment | about)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    placed("none", "10s")  # what it needs is compiled
    began = time.monotonic()
    run = placed("hang@trial", "40s")
    took_s = time.monotonic() - began
    assert took_s < 80 * PATIENCE, "two minutes were waited for a placement"
    assert (tmp_path / "reached").exists()
    assert {part["toolchain"] for part in run["placement"]["partitions"]} == {"onnxruntime"}
