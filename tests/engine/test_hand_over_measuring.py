"""Transition constants of real toolchains."""

from __future__ import annotations

from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.timing.protocol import ProtocolSettings
from collage_engine.transitions.chain_bench import ChainBench, HandoverRequest, run_job
from tests.support.measure_real_targets import Picky
from tests.support.plain_toolchain import PLAIN, register

ORT = ToolchainInstance(toolchain="onnxruntime")
QUICK = ProtocolSettings(worse=9e9, hopeless=9e9, min_rounds=3, max_rounds=3)


def test_constants_are_small_and_complete(monkeypatch):
    register(monkeypatch)
    found = run_job(HandoverRequest((ORT, PLAIN), QUICK))
    names = ("onnxruntime", "plain")
    pairs = {f"pair:{a}:{b}" for a in names for b in names}
    assert set(found) == {"launch", *pairs}
    assert all(0 <= us < 1000 for us in found.values()), found


def test_a_toolchain_that_refuses_the_chain_is_left_out(monkeypatch):
    from collage_engine.toolchains import registry

    monkeypatch.setitem(registry.TOOLCHAINS, "picky", "tests.support.measure_real_targets:Picky")
    picky = ToolchainInstance(toolchain=Picky.name)
    found = run_job(HandoverRequest((ORT, picky), QUICK))
    assert set(found) == {"launch", "pair:onnxruntime:onnxruntime"}


def test_chains_compute_what_they_say(monkeypatch):
    register(monkeypatch)
    bench = ChainBench(HandoverRequest((ORT, PLAIN), QUICK))
    times = bench.time_chains([("plain", "onnxruntime") * 2, ("onnxruntime",) * 4])
    assert len(times) == 2 and all(us > 0 for us in times.values())
