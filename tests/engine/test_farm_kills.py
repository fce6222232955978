"""Processes of a farm are killed while models are placed on it: no cost is lost or doubled."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("distributed", reason="the extra `farm` is not installed")

from collage_engine.farm.farms import look_at
from collage_engine.records.errors import FarmError
from collage_engine.store.store import Store
from tests.support.farm_cluster import ROOT, FarmProcesses
from tests.support.farm_kills import MNIST, FarmCampaign

KILLS = int(os.environ.get("COLLAGE_KILLS", "1"))
"""Kills in the test; ``COLLAGE_KILLS=200`` is the whole campaign, some hours."""
pytestmark = pytest.mark.slow


@pytest.mark.timeout(600 + 600 * KILLS)
def test_no_cost_is_lost_whatever_dies(tmp_path) -> None:
    campaign = FarmCampaign(tmp_path, seed=KILLS, budget_s=45 if KILLS > 1 else 15)
    try:
        report = campaign.run(KILLS, seconds=600.0 * KILLS)
    finally:
        campaign.close()
    assert not report.faults, "\n".join(report.faults)


def stages(address: str) -> list[str]:
    """The stages of the placements that are under way."""
    with contextlib.suppress(FarmError):
        return [one.stage for one in look_at(address).placements]
    return []


@pytest.mark.timeout(1800)
def test_a_scheduler_that_is_started_again_at_once_costs_the_run_no_machine(
    tmp_path, monkeypatch
) -> None:
    """Dask's client finds the new scheduler by itself, and its tasks and machines are gone."""
    farm = FarmProcesses(tmp_path, ["one", "two"], shares=True)
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(farm.cache))
    out = tmp_path / "out"
    words = ["place", str(MNIST), "-o", str(out), "--farm", farm.address, "--budget", "60s"]
    words += ["--toolchains", "tvm,onednn", "--threads", "1", "--no-in-place"]
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "collage_engine", *words],
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=farm.environment,
        ) as command:
            while not any(stages(farm.address)):
                assert command.poll() is None
                time.sleep(0.2)
            farm.processes["serve"].kill()
            farm.processes["serve"].wait()
            farm.serve()
            _, said = command.communicate()
        assert command.returncode == 0, said.decode()
        assert "the scheduler" in said.decode() and (out / "manifest.json").is_file()
    finally:
        farm.close()


@pytest.mark.timeout(1800)
def test_a_pool_of_one_machine_that_is_lost_leaves_what_the_run_had(tmp_path, monkeypatch) -> None:
    """The command runs on the processor of the machine, so that both are of one kind."""
    farm = FarmProcesses(tmp_path, ["one"])
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(farm.cache))
    out, session = tmp_path / "out", tmp_path / "mnist.collage"
    words = ["place", str(MNIST), "-o", str(out), "--farm", farm.address, "--json"]
    words += ["--toolchains", "tvm,onednn", "--budget", "1200s", "--measure", "all"]
    words += ["--threads", "1", "--session", str(session)]
    collage = [sys.executable, "-m", "collage_engine"]
    try:
        with subprocess.Popen(
            [*collage, *words],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=farm.environment,
            preexec_fn=lambda: os.sched_setaffinity(0, {farm.processors["one"]}),
        ) as command:
            while not {"measure", "search"} & set(stages(farm.address)):
                assert command.poll() is None
                time.sleep(0.5)
            for process in farm.everybody("one"):
                with contextlib.suppress(Exception):
                    process.kill()
            farm.processes["join-one"].kill()
            text, _ = command.communicate()
        assert command.returncode == 0
        run = json.loads(text)
        assert run["ended"] == "budget" and run["measured_on"] == "one" and run["placement"]
        assert "this machine, which is of the pool's kind, has built" in run["warnings"][-1]
        assert run["artifact"] == str(out) and session.is_file()
        assert Store(farm.cache / "measurements.db").measurements()
        done = subprocess.run(
            [*collage, "run", str(out)], capture_output=True, cwd=ROOT, env=farm.environment
        )
        assert done.returncode == 0, done.stderr
    finally:
        farm.close()
