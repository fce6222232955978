"""Processes of a farm are killed while models are placed on it: no cost is lost or doubled."""

import os

import pytest

pytest.importorskip("distributed", reason="the extra `farm` is not installed")

from tests.support.farm_kills import FarmCampaign

KILLS = int(os.environ.get("COLLAGE_KILLS", "1"))
"""Kills in the test; ``COLLAGE_KILLS=200`` is the whole campaign, some hours."""


@pytest.mark.slow
@pytest.mark.timeout(600 + 600 * KILLS)
def test_no_cost_is_lost_whatever_dies(tmp_path) -> None:
    campaign = FarmCampaign(tmp_path, seed=KILLS, budget_s=45 if KILLS > 1 else 15)
    try:
        report = campaign.run(KILLS, seconds=600.0 * KILLS)
    finally:
        campaign.close()
    assert not report.faults, "\n".join(report.faults)
