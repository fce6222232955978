"""Transition constants: kept per machine and versions, given to all instances."""

from __future__ import annotations

import pytest

from collage_engine.records.errors import MeasureError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.store.keys import KeyContext
from collage_engine.store.store import Store
from collage_engine.transitions.hand_overs import HandoverRequest, spread, transition_constants

A = ToolchainInstance(toolchain="a")
A2 = ToolchainInstance(toolchain="a", config=(("level", "basic"),))
B = ToolchainInstance(toolchain="b")


def context(**changes) -> KeyContext:
    fixed = {"tvm_version": "1", "target": "t", "fingerprint": "f", "versions": {"a": "1"}}
    return KeyContext(**(fixed | changes))


def pretend(request: HandoverRequest) -> dict[str, float]:
    """Runs in the child."""
    assert [i.id for i in request.instances] == ["a", "b"], "one instance per toolchain"
    return {"launch": 0.5, "pair:a:a": 0.1, "pair:a:b": 2.0, "pair:b:a": 3.0}


def fall_over(request: HandoverRequest) -> dict[str, float]:
    raise SystemExit(3)


def test_all_instances_of_a_toolchain_share_its_constants():
    found = spread(pretend(HandoverRequest((A, B))), [A, A2, B])
    assert found["launch"] == 0.5 and found["pair:a[level=basic]:b"] == 2.0
    assert found["pair:b:a[level=basic]"] == 3.0 and found["pair:a:a[level=basic]"] == 0.1
    assert "pair:b:b" not in found, "not measured is not zero"


def test_measured_once_per_machine_versions_and_threads(tmp_path):
    job = f"{__name__}:pretend"
    with Store(tmp_path / "m.db") as store:
        first = transition_constants([A, A2, B], context(), store=store, job=job)
        broken = f"{__name__}:fall_over"
        assert transition_constants([A, A2, B], context(), store=store, job=broken) == first
        for other in (context(versions={"a": "2"}), context(fingerprint="g")):
            with pytest.raises(MeasureError, match=r"transition costs could not .* SystemExit: 3"):
                transition_constants([A, B], other, store=store, job=broken)
        more = ToolchainInstance(toolchain="a", threads=2)
        with pytest.raises(MeasureError):
            transition_constants([more, B], context(), store=store, job=broken)
