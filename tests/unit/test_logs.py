"""One log file for all processes; standard error shows it when the user asks, and once only."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.machine import logs
from collage_engine.machine.run_control import RunControl
from collage_engine.machine.worker import Worker
from tests.support.command import python
from tests.support.read_only_folder import read_only

DO = "tests.support.worker_targets:do"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the logs; afterwards this process logs nowhere again."""
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path))
    yield tmp_path / logs.FOLDER
    logs.inherit(logs.LogSettings(), "")
    logging.getLogger(logs.ROOT).propagate = True


def lines(folder: Path) -> list[str]:
    return (folder / logs.FILE_NAME).read_text().splitlines()


def test_a_program_that_configures_nothing_gets_no_file_and_no_output(tmp_path):
    code = (
        "import logging; from collage_engine.machine.worker import Worker;"
        f"w = Worker({DO!r});"
        "w.call({'do': 'log', 'level': logging.ERROR, 'text': 'hidden'}); w.close();"
        "logging.getLogger('collage_engine.x').error('hidden too')"
    )
    done = python(code, env={**os.environ, "COLLAGE_CACHE_DIR": str(tmp_path)}, check=True)
    assert done.stdout + done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_where_the_log_cannot_be_written_the_work_goes_on_without(folder):
    logs.configure()
    with read_only(folder.parent):
        assert logs.configure() is None
        logging.getLogger("collage_engine.x").error("lost")
    assert logs.configure() == folder / logs.FILE_NAME
    with read_only(folder.parent):
        logging.getLogger("collage_engine.x").error("lost as well")
    assert lines(folder) == []


def test_the_whole_family_writes_one_file_each_record_once(folder, capfd):
    logs.configure(1)
    with Worker(DO, name="outer-child") as worker:
        worker.call({"do": "log", "level": logging.INFO, "text": "child says", "below": True})
    written = lines(folder)
    for text, name in (("child says", "outer-child"), ("grandchild", "collage-worker")):
        (line,) = [line for line in written if line.endswith(text)]
        assert re.search(rf"INFO +{name}\[\d+\] collage_engine.tests: ", line)
    shown = capfd.readouterr().err.splitlines()
    assert shown.count("INFO collage_engine.tests: child says") == 1
    assert shown.count("INFO collage_engine.tests: grandchild") == 1


def test_stages_and_warnings_of_a_run_go_to_the_file_but_not_to_standard_error(folder, capfd):
    logs.configure(1)
    events: list[object] = []
    control = RunControl(events.append)
    with control.stage("search") as report:
        control.warn("the machine is busy")
        report.detail = "3 covers"
    assert len(events) == 3
    texts = [line.partition("run_control: ")[2] for line in lines(folder)]
    assert texts[0] == "stage search begins"
    assert texts[1] == "the machine is busy"
    assert re.fullmatch(r"stage search: \d+\.\d s 3 covers", texts[2])
    assert capfd.readouterr().err == ""


def test_a_large_file_is_renamed_at_the_next_start(folder, monkeypatch):
    logs.configure()
    with Worker(DO) as worker:
        worker.call({"do": "log", "level": logging.INFO, "text": "before"})
        monkeypatch.setattr(logs, "MOST_BYTES", 20)
        logs.configure()
        worker.call({"do": "log", "level": logging.INFO, "text": "after"})
    old, new = ((folder / name).read_text() for name in ("collage.log.1", "collage.log"))
    assert "before" in old and "after" in new and "after" not in old


def test_the_command_line_logs_what_it_did_and_v_shows_it(tmp_path):
    def collage(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "collage_engine", *arguments],
            env={**os.environ, "COLLAGE_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
        )

    quiet = collage("explain", "none.collage", "0")
    assert quiet.stderr == "collage: there is no session file none.collage\n"
    loud = collage("explain", "-v", "none.collage", "0")
    assert "INFO collage_engine.cli.main: collage explain, version" in loud.stderr
    assert loud.stderr.count("there is no session file") == 1
    written = (tmp_path / "logs" / "collage.log").read_text()
    assert written.count("SessionError: there is no session file none.collage") == 2
