"""A process that is killed while it saves a session over and over damages nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from collage_engine.store.session_file import load_session
from collage_engine.support import files
from tests.support.command import ROOT
from tests.support.full_documents import full_session

KILLS = int(os.environ.get("COLLAGE_KILLS", "3"))
"""Kills in one test; ``COLLAGE_KILLS=40`` is the whole campaign, a minute."""
WRITER = """
import itertools, sys
from collage_engine.store.session_file import load_session, save_session
document = load_session(sys.argv[1])
print("ready", flush=True)
for number in itertools.count():
    document.runs[-1].note = str(number) * 1000
    save_session(document, sys.argv[1])
"""
LONGEST_S = 0.5
"""Seconds of saving within which the writer is killed; chosen: it saves some twenty times."""


def test_a_session_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    moments = random.Random(5)
    path = tmp_path / "s.collage"
    path.write_bytes(full_session())
    for _ in range(KILLS):
        command = [sys.executable, "-c", WRITER, str(path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
            assert writer.stdout is not None and writer.stdout.readline()
            time.sleep(moments.uniform(0.0, LONGEST_S))
            writer.kill()
        assert len(load_session(path).runs) == 2
    for left in tmp_path.iterdir():  # the next writer believes that hours have passed
        os.utime(left, (time.time() - 2 * files.JOB_S,) * 2)
    files.remove_unfinished(path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
