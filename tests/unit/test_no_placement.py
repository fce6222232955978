"""A run without a placement says why; more time is advised only where it could help."""

from __future__ import annotations

import pytest

from collage_engine.records.cost import Cost
from collage_engine.records.cost_table import CostTable
from collage_engine.records.errors import InfeasibleError
from collage_engine.records.settings import RunSettings
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.stages.enumerate import _check_that_a_cover_exists
from collage_engine.run.stages.search import find_covers
from tests.support.covers import candidate_on
from tests.support.graphs import chain, instance

OPENVINO = instance("openvino")
FIRST, SECOND, BOTH = (candidate_on(OPENVINO, nodes) for nodes in ((0,), (1,), (0, 1)))
RIGHT = Cost(state="measured", median_us=5.0)
WRONG = Cost(state="invalid", reason="wrong numbers in PRelu")


def data_of(**costs: Cost) -> ProblemData:
    known = {"first": FIRST, "second": SECOND, "both": BOTH}
    return ProblemData(
        graph=chain("nn.relu", "nn.prelu").record,
        candidates=(FIRST, SECOND, BOTH),
        costs=CostTable(isolated={known[name].id: cost for name, cost in costs.items()}),
        constants={},
        pins=(),
        settings=RunSettings(),
    )


def refusal(out_of_time: bool, **costs: Cost) -> str:
    with pytest.raises(InfeasibleError) as caught:
        find_covers(
            data_of(**costs), {"openvino": {}}, ["OpenVINO only: wrong numbers in y"], out_of_time
        )
    return str(caught.value)


@pytest.mark.parametrize("out_of_time", [True, False])
def test_where_nothing_is_right_the_reasons_are_told_and_no_time_is_asked_for(
    out_of_time: bool,
) -> None:
    said = refusal(out_of_time, first=RIGHT, second=WRONG, both=WRONG)
    assert "OpenVINO only: wrong numbers in y" in said and "wrong numbers in PRelu" in said
    assert "--budget" not in said


def test_time_is_asked_for_where_it_could_help_and_the_reasons_are_told_too() -> None:
    # The second operator alone is not measured yet.
    said = refusal(True, first=RIGHT, both=WRONG)
    assert "OpenVINO only: wrong numbers in y" in said and "--budget" in said
    said = refusal(False, first=RIGHT, both=WRONG)
    assert "OpenVINO only: wrong numbers in y" in said and "--budget" not in said


def test_what_an_earlier_run_found_wrong_is_told_before_anything_is_measured() -> None:
    data = data_of(first=RIGHT, second=WRONG, both=WRONG)
    with pytest.raises(InfeasibleError) as caught:
        _check_that_a_cover_exists(data, {"openvino": {}})
    assert "wrong numbers in PRelu" in str(caught.value)
