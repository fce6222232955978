"""What a report's page says in sentences."""

from __future__ import annotations

from collage_engine.report.report import render
from tests.unit.test_session import a_document


def test_a_single_partition_is_no_sum():
    """Its costs are explained without a sum of one."""
    page = render(a_document(), "html").decode()
    assert '<p class="soft">Isolated: the candidate measured by itself.' in page
