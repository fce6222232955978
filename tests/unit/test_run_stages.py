"""The list of stages: every stage finds the facts it needs, and none changes what it was given."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest

from collage_engine.control.run_control import RunControl
from collage_engine.records.errors import Cancelled
from collage_engine.run.run import STAGES, UNMEASURED_STAGES
from collage_engine.run.run_document import DocumentInputs, UnmeasuredInputs
from collage_engine.run.stage import Stage, run_stages
from collage_engine.run.stages.enumerate import Enumerate

GIVEN = {
    "open_model",
    "settings",
    "pins",
    "out",
    "run_id",
    "started_at",
    "budget",
    "previous",
    "machine_before",
}
"""The facts that a run begins with."""


def result_of(stage: Stage[Any, Any]) -> type[Any]:
    found: type[Any] = get_type_hints(type(stage).run)["return"]
    return found


def fields_of(record: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


@pytest.mark.parametrize(
    ("stages", "document"),
    [
        ((Enumerate(), *STAGES), DocumentInputs),
        ((Enumerate(), *UNMEASURED_STAGES), UnmeasuredInputs),
    ],
    ids=["measured", "unmeasured"],
)
def test_every_fact_is_known_before_it_is_needed(stages: Any, document: type[Any]) -> None:
    known = set(GIVEN)
    for stage in stages:
        assert fields_of(stage.inputs) <= known, stage.name
        known |= fields_of(result_of(stage))
    assert fields_of(document) <= known


@pytest.mark.parametrize("stage", [Enumerate(), *STAGES, *UNMEASURED_STAGES], ids=lambda s: s.name)
def test_inputs_and_results_are_frozen(stage: Stage[Any, Any]) -> None:
    for record in (stage.inputs, result_of(stage)):
        assert record.__dataclass_params__.frozen, record


@dataclass(frozen=True)
class Number:
    number: int


class Double:
    name = "double"
    inputs = Number

    def run(self, inputs: Number, control: RunControl) -> Number:
        return Number(inputs.number * 2)


class Cancel:
    name = "cancel"
    inputs = Number

    def run(self, inputs: Number, control: RunControl) -> Number:
        control.cancelled.set()
        return inputs


def test_a_result_takes_the_place_of_older_facts_of_its_names() -> None:
    before = {"number": 3, "other": "kept"}
    assert run_stages([Double(), Double()], before, RunControl()) == {"number": 12, "other": "kept"}
    assert before["number"] == 3


def test_no_stage_begins_after_a_cancel() -> None:
    with pytest.raises(Cancelled):
        run_stages([Cancel(), Double()], {"number": 3}, RunControl())


def test_control_closes_what_was_opened_however_the_job_ends() -> None:
    class Resource:
        closed = False

        def __enter__(self) -> Resource:
            return self

        def __exit__(self, *_: object) -> None:
            self.closed = True

    resource = Resource()
    with pytest.raises(ValueError, match="stopped"), RunControl() as control:
        assert control.open(resource) is resource and not resource.closed
        raise ValueError("stopped")
    assert resource.closed
