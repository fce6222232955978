"""Progress: steady lines on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import io
import re

from rich.console import Console

from collage_engine.records.event import Log, Progress, Provisional, Stage
from collage_engine.records.placement import Baseline, Partition, Placement, Run
from collage_engine.records.toolchain import ToolchainState
from collage_engine.report.progress import ProgressReport
from tests.support.runs import run_record

EVENTS = [
    Stage(stage="measure"),
    Log(level="warning", text="busy [really]"),
    Progress(stage="measure", done=3, total=12345, now="nn.conv2d+" * 20, rate=0.5, left_s=3000.0),
    Stage(stage="measure", done=True, seconds=2.0, detail="7 measured [all]"),
]


def shown(terminal: bool, width: int) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, highlight=False)
    with ProgressReport(console) as report:
        for event in EVENTS:
            report("d", event)
            if terminal:
                report._bars.refresh()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


def test_on_a_terminal_a_stage_is_one_line_however_long_its_text():
    text = shown(True, 80)
    lines = text.replace("\r", "\n").split("\n")
    assert max(map(len, lines)) <= 80
    assert "3/12345" in text and "50 min left" in text
    assert "7 measured [all]" in text and "busy [really]" in text


def test_the_best_placement_so_far_is_told() -> None:
    file = io.StringIO()
    with ProgressReport(Console(file=file, width=200)) as report:
        placement = Placement(partitions=(), estimated_us=None, measured_us=38_840.0)
        report("d", Provisional(run=a_run(placement)))
    assert file.getvalue() == "Best so far (after 13 s): Fast Runtime only, 38.8 ms\n"


def test_a_mix_is_told_beside_the_fastest_baseline_of_the_same_rounds() -> None:
    """A mix that is the best so far may take more than the last answer took a minute ago."""
    file = io.StringIO()
    part = Partition(
        id="p0",
        candidate="c",
        toolchain="fast",
        config={},
        nodes=(0,),
        onnx_nodes=("relu",),
        estimated_us=None,
    )
    with ProgressReport(Console(file=file, width=200)) as report:
        placement = Placement(partitions=(part,), estimated_us=None, measured_us=36_000.0)
        report("d", Provisional(run=a_run(placement, winner="collage")))
    assert file.getvalue() == (
        "Best so far (after 13 s): Collage's placement in 1 partition, 36.0 ms; "
        "in the same rounds Fast Runtime only takes 38.8 ms\n"
    )


def a_run(placement: Placement, winner: str = "fast") -> Run:
    return run_record(
        model={"nodes": 3},
        toolchains=[ToolchainState(name="fast", title="Fast Runtime", available=True)],
        placement=placement,
        baselines=[Baseline(name="fast", kind="whole-model", measured_us=38_840.0, partitions=1)],
        winner=winner,
        seconds={"total": 13.3},
        started_at="",
        settings={},
        provisional=True,
    )


def test_into_a_file_it_is_one_line_a_stage():
    assert shown(False, 500) == "busy [really]\nMeasuring (2.0 s): 7 measured [all]\n"
