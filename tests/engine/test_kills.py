"""Nothing that was measured or saved is lost when any process of a run is killed."""

from __future__ import annotations

import os
import time

from tests.support.kills import Campaign

KILLS = int(os.environ.get("COLLAGE_KILLS", "3"))
"""Kills in one test; ``COLLAGE_KILLS=200`` is the whole campaign, an hour or two."""


def test_whatever_is_killed_no_cost_is_lost_and_the_next_run_ends_well(tmp_path):
    campaign = Campaign(tmp_path, seed=7, toolchains="onednn,onnxruntime")
    report = campaign.run(KILLS, seconds=36_000)
    assert not report.faults
    assert report.kinds.total() == KILLS


def test_what_killed_processes_leave_behind_is_noticed(tmp_path):
    campaign = Campaign(tmp_path, seed=7, toolchains="tvm")
    (tmp_path / "tmp" / "collage-store-old").mkdir(parents=True)
    (tmp_path / ".out.0123abcd.partial").mkdir()
    long_ago = time.time() - 1000
    for path in (tmp_path / "tmp" / "collage-store-old", tmp_path / ".out.0123abcd.partial"):
        os.utime(path, (long_ago, long_ago))
    (tmp_path / "tmp" / "collage-young").mkdir()
    assert campaign.left_behind(time.time()) == [".out.0123abcd.partial", "collage-store-old"]
