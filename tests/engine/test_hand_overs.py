"""Transition constants: kept per machine and versions, given to all instances.

Transition constants of real toolchains.
"""

from __future__ import annotations

import itertools
import os
import time

import msgspec
import pytest

from collage_engine.machine.faults import OWN_RISK
from collage_engine.machine.run_control import RunControl
from collage_engine.planning import search_inputs
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.keys import KeyContext
from collage_engine.store.store import Store
from collage_engine.timing import protocol, transitions
from collage_engine.timing.chain_bench import ChainBench, TransitionRequest, run_job
from collage_engine.timing.transitions import ConstantsBench
from tests.support.measure_real_targets import Picky
from tests.support.plain_toolchain import PLAIN, register

A = ToolchainInstance(toolchain="a")
A2 = ToolchainInstance(toolchain="a", config=(("level", "basic"),))
B = ToolchainInstance(toolchain="b")


def context(**changes) -> KeyContext:
    fixed = {"tvm_version": "1", "target": "t", "fingerprint": "f", "versions": {"a": "1"}}
    return KeyContext(**(fixed | changes))


def pretend(request: TransitionRequest) -> dict[str, float]:
    """Runs in the child."""
    assert [i.id for i in request.instances] == ["a", "b"], "one instance per toolchain"
    return {"launch": 0.5, "pair:a:a": 0.1, "pair:a:b": 2.0, "pair:b:a": 3.0}


def fall_over(request: TransitionRequest) -> dict[str, float]:
    raise SystemExit(3)


def test_all_instances_of_a_toolchain_share_its_constants():
    found = search_inputs.transitions(pretend(TransitionRequest((A, B))), [A, A2, B])
    us = {(source, target): us for source, target, us in found}
    assert us["a[level=basic]", "b"] == us["a", "b"] == 2.0
    assert us["b", "a[level=basic]"] == 3.0 and us["a", "a[level=basic]"] == 0.1
    assert ("b", "b") not in us, "not measured is not zero"
    gpu = msgspec.structs.replace(A, device="cuda:0", architecture="sm_90a")
    found = search_inputs.transitions({"pair:a:a": 0.1}, [A, gpu])
    assert found == ((gpu.id, gpu.id, 0.1),), "to and from the host it is copies that cost"


def test_measured_once_per_machine_versions_and_threads(tmp_path):
    job = f"{__name__}:pretend"
    with Store(tmp_path / "m.db") as store:
        bench = ConstantsBench(context=context(), store=store, control=RunControl())
        first = bench.transitions([A, A2, B], job)
        broken = f"{__name__}:fall_over"
        assert bench.transitions([A, A2, B], broken) == first
        more = ToolchainInstance(toolchain="a", threads=2)
        for instance, other in (
            (A, context(versions={"a": "2"})),
            (A, context(fingerprint="g")),
            (more, context()),
        ):
            control = RunControl()
            told = control.warnings
            other_bench = ConstantsBench(context=other, store=store, control=control)
            found = other_bench.transitions([instance, B], broken)
            assert found == {} and len(told) == 1
            assert "transition costs could not be measured: SystemExit: 3" in told[0]


WAYS = ("exit", "hang")


def misbehave(request: TransitionRequest) -> dict[str, float]:
    """Runs in the child: the toolchain named after a way to misbehave does so when it is alone."""
    names = [instance.toolchain for instance in request.instances]
    for first, last in itertools.product(names, names):
        OWN_RISK.set(last, limit_s=request.step_s)
        if first == last == "abort":
            os.abort()
        if first == last == "exit":
            os._exit(0)
        if first == last == "hang":
            time.sleep(600)
        if (first, last) == ("badly", "together"):
            os.abort()
        OWN_RISK.clear()
    return {"launch": 0.5, "pair:a:a": 0.1}


def measured_beside(
    monkeypatch, store, *names: str, job: str = f"{__name__}:misbehave"
) -> tuple[dict[str, float], list[str]]:
    monkeypatch.setattr(transitions, "ANSWER_S", 8.0)
    control = RunControl()
    others = [ToolchainInstance(toolchain=name) for name in names]
    bench = ConstantsBench(context=context(), store=store, control=control)
    return bench.transitions([A, *others], job), control.warnings


def test_toolchains_that_misbehave_are_named_and_left_out_one_by_one(tmp_path, monkeypatch):
    with Store(tmp_path / "m.db") as store:
        found, told = measured_beside(monkeypatch, store, *WAYS)
        assert found == {"launch": 0.5, "pair:a:a": 0.1} and len(told) == len(WAYS)
        for way in WAYS:
            assert any(f"what {way} takes to hand over values is not known" in one for one in told)
        again = measured_beside(monkeypatch, store, *WAYS, job=f"{__name__}:fall_over")
        assert again[0] == {}, "who gave no answer may give one in the next run"


def test_who_crashed_is_remembered(tmp_path, monkeypatch):
    with Store(tmp_path / "m.db") as store:
        first = measured_beside(monkeypatch, store, "abort")
        assert len(first[1]) == 1
        assert first == measured_beside(monkeypatch, store, "abort", job=f"{__name__}:fall_over")


def test_of_toolchains_that_misbehave_only_together_the_later_one_goes(tmp_path, monkeypatch):
    with Store(tmp_path / "m.db") as store:
        found, told = measured_beside(monkeypatch, store, "badly", "together")
    assert found["pair:a:a"] == 0.1 and len(told) == 1 and "what together takes" in told[0]


ORT = ToolchainInstance(toolchain="onnxruntime")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(protocol, "BUDGET_S", 0.003)


def test_constants_are_small_and_complete(monkeypatch, quick):
    register(monkeypatch)
    found = run_job(TransitionRequest((ORT, PLAIN)))
    names = ("onnxruntime", "plain")
    pairs = {f"pair:{a}:{b}" for a in names for b in names}
    assert set(found) == {"launch", *pairs}
    assert all(0 <= us < 1000 for us in found.values()), found


def test_a_toolchain_that_refuses_the_chain_is_left_out(monkeypatch, quick):
    from collage_engine.toolchains import registry

    monkeypatch.setitem(registry.TOOLCHAINS, "picky", "tests.support.measure_real_targets:Picky")
    picky = ToolchainInstance(toolchain=Picky.about.name)
    found = run_job(TransitionRequest((ORT, picky)))
    assert set(found) == {"launch", "pair:onnxruntime:onnxruntime"}


def test_chains_compute_what_they_say(monkeypatch, quick):
    register(monkeypatch)
    bench = ChainBench(TransitionRequest((ORT, PLAIN)))
    times = bench.time_chains([("plain", "onnxruntime") * 2, ("onnxruntime",) * 4])
    assert len(times) == 2 and all(us > 0 for us in times.values())
