"""Nothing that was measured or saved is lost when any process of a run is killed."""

from __future__ import annotations

import os

from tests.support.kills import Campaign

KILLS = int(os.environ.get("COLLAGE_KILLS", "3"))
"""Kills in one test; ``COLLAGE_KILLS=200`` is the whole campaign, an hour or two."""


def test_whatever_is_killed_no_cost_is_lost_and_the_next_run_ends_well(tmp_path):
    campaign = Campaign(tmp_path, seed=7, toolchains="onednn,onnxruntime")
    report = campaign.run(KILLS, seconds=36_000)
    assert not report.faults
    assert report.kinds.total() == KILLS
