"""The round trip between two cores is measured, and strict runs refuse a busy machine."""

from __future__ import annotations

import pytest

from collage_engine.machine.clocks import machine_state, round_trip_ns
from collage_engine.machine.device import physical_cores
from collage_engine.records.placement import MachineState
from collage_engine.records.settings import RunSettings
from collage_engine.run.stages.export import require_quiet_machine
from collage_engine.support.errors import MeasureError
from collage_engine.toolchains.runtime.builder import find_compiler
from collage_engine.wording.figures import round_trip_text


def test_the_round_trip_between_two_cores_is_measured_and_told(monkeypatch) -> None:
    compiler = find_compiler()
    ns = round_trip_ns(compiler)
    assert (ns is None) == (physical_cores() < 2)
    if ns is not None:
        assert ns > 5
        told = round_trip_text([MachineState(at="", round_trip_ns=ns), MachineState(at="")])
        assert told.startswith(f"{ns:,.0f} ns")
    assert machine_state().round_trip_ns is None and round_trip_text([MachineState(at="")]) == ""
    monkeypatch.setattr("collage_engine.machine.clocks.one_of_each_core", lambda: [0])
    assert round_trip_ns(compiler) is None
    monkeypatch.setattr("collage_engine.machine.clocks.one_of_each_core", lambda: [0, 1])
    assert round_trip_ns(["false"]) is None and round_trip_ns(["/nothing/there"]) is None


BUSY = MachineState(at="", busy="the machine is busy: other programs use 40% of it; less certain")


def test_strict_runs_take_no_figures_beside_others() -> None:
    strict = RunSettings(strict=True)
    quiet = MachineState(at="")
    assert require_quiet_machine(quiet, strict) is quiet
    assert require_quiet_machine(BUSY, RunSettings()) is BUSY
    with pytest.raises(MeasureError, match="busy: other programs use 40% of it; with --strict no"):
        require_quiet_machine(BUSY, strict)
