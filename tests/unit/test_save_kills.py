"""A process that is killed while it saves a session damages nothing."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.save_kills import kill_writers

KILLS = int(os.environ.get("COLLAGE_KILLS", "3"))
"""Kills in one test; ``COLLAGE_KILLS=40`` is the whole campaign, a minute."""


def test_a_session_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    wrong, _ = kill_writers(tmp_path, KILLS, seed=5)
    assert not wrong, "\n".join(wrong)
