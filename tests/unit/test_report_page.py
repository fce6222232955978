"""What a report's page says in sentences."""

from __future__ import annotations

from collage_engine.report.report import render
from tests.unit.test_session import a_document


def test_a_single_partition_is_no_sum():
    """Its costs are explained without a sum of one."""
    page = render(a_document(), "html").decode()
    assert '<p class="soft">Isolated: the candidate measured by itself.' in page


def test_a_small_graph_is_not_stretched_to_the_width_of_the_page():
    page = render(a_document(), "html").decode()
    rule = page.split(".graph svg {", 1)[1].split("}", 1)[0]
    style = dict(each.strip().split(":") for each in rule.split(";") if each.strip())
    assert style["max-width"] == "100%" and "width" not in style
