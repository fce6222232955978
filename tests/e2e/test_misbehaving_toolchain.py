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
from typing import Any

import onnx
import pytest

from tests.support.caches import fresh_cache
from tests.support.misbehaving import COMPUTING, MODES, PLACES, REACHED, VARIABLE, install
from tests.support.toolchain_models import convolutions

LONG = bool(os.environ.get("COLLAGE_LONG_TESTS"))
PATIENCE = float(os.environ.get("COLLAGE_PATIENCE", "1"))
"""How many times as long a run may take: more than 1 on a machine that much else uses."""
LONGEST_S = 480.0 * PATIENCE
"""Seconds of a run whose toolchain hangs at several places in turn, on a busy machine."""
BUDGET = f"{200 * PATIENCE:.0f}s"
"""Of a run, which comes to its end before; it is long so that every place is reached."""
pytestmark = pytest.mark.timeout(500 * PATIENCE)

FEW = [("abort", "hand-over"), ("segfault", "supports")]
EVERY = [
    (mode, place)
    for place in PLACES
    for mode in MODES
    if place != "tuning" and not (mode == "garbage" and place in (*COMPUTING, "import", "rules"))
]
"""The example, which ``evil`` is made of, has no kernels to tune; garbage is ``wrong`` where
something is computed, and a reason where rules judge."""
ASKED = ("import", "instances", "supports", "partition_spec", "rules")
"""Places at which it is asked about the model: it is left out for the whole run then."""
IN_NO_PLACEMENT = ("probe", "build", "trial", *ASKED)
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
    command += ["--no-in-place", "--threads", "1"]
    if place in ASKED:  # elsewhere not, since it measures nothing where the whole model has a time
        command += ["--confirm", "quick"]
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
        env=environment
        | {
            VARIABLE: f"{mode}@{place}",
            REACHED: str(tmp_path / "reached"),
            "COLLAGE_CACHE_DIR": str(cache),
        },
    )
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


@pytest.mark.parametrize(("place", "budget", "most_s"), [("supports", 20, 60), ("trial", 40, 80)])
def test_a_toolchain_that_hangs_leaves_the_others_the_time_of_a_short_budget(
    environment, tmp_path, place, budget, most_s
):
    onnx.save(additions(), tmp_path / "model.onnx")
    cache = fresh_cache(tmp_path / "cache", constants=False)
    command = [sys.executable, "-m", "collage_engine", "place", "model.onnx", "-o", "out"]
    command += ["--toolchains", "evil,onnxruntime", "--threads", "1", "--json"]
    env = environment | {"COLLAGE_CACHE_DIR": str(cache), REACHED: str(tmp_path / "reached")}

    def placed(mode: str, budget: str) -> dict[str, Any]:
        done = subprocess.run(
            [*command, "--budget", budget],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=LONGEST_S,
            check=False,
            env=env | {VARIABLE: mode},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    placed("none", "30s")  # what it needs is compiled
    began = time.monotonic()
    run = placed(f"hang@{place}", f"{budget}s")
    took_s = time.monotonic() - began
    assert took_s < most_s * PATIENCE, "a minute was waited for one answer, two for a placement"
    assert (tmp_path / "reached").exists()
    assert {part["toolchain"] for part in run["placement"]["partitions"]} == {"onnxruntime"}
    if place == "supports":
        assert any("no answer within 5 s" in warning for warning in run["warnings"])


def additions() -> onnx.ModelProto:
    """Return a model that the example, which ``evil`` is made of, can run as a whole."""
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["y"], "relu"),
        onnx.helper.make_node("Add", ["y", "x"], ["z"], "add"),
    ]
    shape = (1, 8, 64, 64)
    ends = [onnx.helper.make_tensor_value_info(name, 1, shape) for name in ("x", "z")]
    graph = onnx.helper.make_graph(nodes, "additions", ends[:1], ends[1:])
    opsets = [onnx.helper.make_opsetid("", 13)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
