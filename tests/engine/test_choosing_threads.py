"""A run without a given number of threads finds out whether the model is faster on fewer."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import pytest

from collage_engine.candidates.open_model import OpenModel
from collage_engine.machine.device import machine_state
from collage_engine.machine.run_control import RunControl
from collage_engine.records.placement import MachineState, Run
from collage_engine.records.protocol import Job, RunStart
from collage_engine.records.settings import RunSettings
from collage_engine.run import run as run_module
from collage_engine.run.run import run
from collage_engine.run.stages import threads as threads_module
from collage_engine.trials.race import Race
from tests import zoo

BUSY = "other programs use 90 % of this machine's processors"


def placed(
    folder: Path,
    patch: pytest.MonkeyPatch,
    *,
    share: float,
    busy: str | None = None,
    handing_us: float = math.inf,
    previous: Run | None = None,
    **settings: object,
) -> tuple[Run, list[str]]:
    """Run on two cores, of which one takes this share of the time of both.

    Returns:
        The document, and the numbers of threads that were tried.
    """
    path = folder / "model.onnx"
    onnx.save(zoo.build("tiny"), path)
    tried: list[str] = []
    without_entering = Race.time_without_entering

    def with_share(race: Race, contenders, **more) -> dict[str, float]:
        found = without_entering(race, contenders, **more)
        assert race.leader is not None and set(found) == {one.name for one in contenders}
        tried.extend(found)
        us = race.standings.time_us(race.leader)
        assert us is not None
        return dict.fromkeys(found, share * us)

    def state(*_: object) -> MachineState:
        return MachineState(at=machine_state().at, busy=busy)

    patch.setattr(Race, "time_without_entering", with_share)
    patch.setattr(run_module, "machine_state", state)
    patch.setattr(threads_module, "HANDING_US", handing_us)
    patch.setattr("collage_engine.candidates.catalog.physical_cores", lambda: 2)
    wanted = RunSettings(toolchains=("tvm", "onnxruntime"), budget_s=60.0, **settings)
    opened = OpenModel(str(path), {})
    try:
        with RunControl() as control:
            request = RunStart(document="d", settings=wanted, run="r1")
            runs = () if previous is None else (previous,)
            job = Job(request=request, path=str(path), runs=runs)
            update = run(lambda: opened, job, control)
            return update.run, tried
    finally:
        opened.close()


def test_a_model_that_is_faster_on_one_thread_is_placed_on_one(tmp_path, monkeypatch):
    found, tried = placed(tmp_path, monkeypatch, share=0.5)
    assert tried == ["1"], "the second time the number is known"
    assert found.threads == 1
    assert found.threads_us[1] == pytest.approx(0.5 * found.threads_us[2])
    assert found.settings.get("threads", 0) == 0, "as the user gave it"
    assert {base.name for base in found.baselines} >= {"tvm", "onnxruntime"}
    again, tried = placed(tmp_path, monkeypatch, share=2.0, previous=found, confirmation="quick")
    assert (again.threads, again.threads_us, tried) == (1, found.threads_us, [])


def test_one_that_is_not_clearly_faster_keeps_all_threads(tmp_path, monkeypatch):
    found, tried = placed(tmp_path, monkeypatch, share=0.98)
    assert (found.threads, tried, sorted(found.threads_us)) == (2, ["1"], [1, 2])
    assert not any(base.name == "1" for base in found.baselines)


def test_nothing_is_tried_where_it_cannot_help_or_was_given_or_beside_others(tmp_path, monkeypatch):
    found, tried = placed(tmp_path, monkeypatch, share=0.5, handing_us=0.0)
    assert (found.threads, found.threads_us, tried) == (2, {}, [])
    assert "threads" not in found.seconds
    found, tried = placed(tmp_path, monkeypatch, share=0.5, threads=2)
    assert (found.threads, found.threads_us, tried) == (2, {}, [])
    found, tried = placed(tmp_path, monkeypatch, share=0.5, busy=BUSY)
    assert (found.threads, found.threads_us, tried) == (2, {}, [])
