"""Progress: steady lines on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import io
import re

from rich.console import Console

from collage_engine.cli.progress import ProgressReport
from collage_engine.records.event import Log, Progress, Stage

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


def test_into_a_file_it_is_one_line_a_stage():
    assert shown(False, 500) == "busy [really]\nMeasuring (2.0 s): 7 measured [all]\n"
