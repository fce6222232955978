"""A toolchain that crashes, hangs, is slow, lies or eats memory costs itself only, wherever it is.

Every case is a whole run of the command line on three operators, of which the toolchain ``evil``
can run one and ONNX Runtime all: it must end with a placement, within its time.
``COLLAGE_LONG_TESTS=1`` tries every way to misbehave at every place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import onnx
import pytest

from tests.support.caches import fresh_cache
from tests.support.misbehaving import MODES, PLACES, VARIABLE, install
from tests.support.toolchain_models import convolutions

LONG = bool(os.environ.get("COLLAGE_LONG_TESTS"))
LONGEST_S = 280.0
"""Seconds of a run whose toolchain hangs at several places in turn, on a busy machine."""
BUDGET = "100s"
"""Of a run, which comes to its end before; it is long so that every place is reached."""

FEW = [("abort", "hand-over"), ("segfault", "supports"), ("exit", "trial")]
EVERY = [(mode, place) for place in PLACES if place != "tuning" for mode in MODES]
"""The example, which ``evil`` is made of, has no kernels to tune."""
IN_NO_PLACEMENT = ("probe", "supports", "build", "trial")
"""Places at which a toolchain that fails cannot be part of a placement."""
FAILS = ("abort", "segfault", "exit", "hang")


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """Return the environment of a command line that has the toolchain."""
    return os.environ | {"PYTHONPATH": install(tmp_path_factory.mktemp("evil") / "site")}


@pytest.mark.parametrize(("mode", "place"), EVERY if LONG else FEW)
def test_a_toolchain_that_misbehaves_costs_itself_only(environment, tmp_path, mode, place):
    out, cache = tmp_path / "out", fresh_cache(tmp_path / "cache", constants=False)
    onnx.save(convolutions(), tmp_path / "model.onnx")
    command = [sys.executable, "-m", "collage_engine", "place", "model.onnx", "-o", str(out)]
    command += ["--toolchains", "evil,onnxruntime", "--budget", BUDGET, "--json"]
    command += [] if LONG else ["--confirm", "quick"]
    if place == "probe":  # what is asked for by name and is not there is an error of the user's
        command[command.index("evil,onnxruntime")] = "onnxruntime"
    began = time.monotonic()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=LONGEST_S,
        check=False,
        env=environment | {VARIABLE: f"{mode}@{place}", "COLLAGE_CACHE_DIR": str(cache)},
    )
    assert done.returncode == 0, f"after {time.monotonic() - began:.0f} s: {done.stderr}"
    run = json.loads(done.stdout)
    used = {part["toolchain"] for part in run["placement"]["partitions"]}
    if place in IN_NO_PLACEMENT and mode in FAILS:
        assert "evil" not in used
    assert "onnxruntime" in used and (out / "manifest.json").exists()
    assert "Traceback" not in done.stderr and "a defect" not in done.stderr
    if place == "supports" and mode in (*FAILS, "wrong"):
        assert any("evil is left out of this run" in warning for warning in run["warnings"])
