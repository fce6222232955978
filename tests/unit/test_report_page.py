"""What a report's page says in sentences."""

from __future__ import annotations

from collage_engine.report.report import render
from collage_engine.wording.report import ABOUT_TIMES
from tests.unit.test_session import a_document


def test_a_single_partition_is_no_sum():
    """Its costs are explained without a sum of one."""
    page = render(a_document(), "html").decode()
    assert f'<p class="soft">{ABOUT_TIMES}' in page.replace("&#39;", "'")
