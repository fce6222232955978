"""The stage protocol, and how a list of stages is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol, TypeVar

from collage_engine.control.run_control import RunControl

Inputs = TypeVar("Inputs", contravariant=True)
Result = TypeVar("Result", covariant=True)
Record = TypeVar("Record")

Facts = Mapping[str, Any]
"""What a run knows between two stages, by name: the fields of the results of earlier stages."""


class Stage(Protocol[Inputs, Result]):
    """One step of a run.

    A stage reads nothing but its inputs and changes none of them: whatever it finds out stands in
    its result.

    Attributes:
        name: The stage's name in events, documents and logs.
        inputs: The frozen dataclass of the stage's inputs. Every field is named after the fact
            that it takes.
    """

    name: str
    inputs: type[Any]

    def run(self, inputs: Inputs, control: RunControl) -> Result:
        """Do the work and return a frozen dataclass, whose fields are the facts found out."""
        ...


def take(record: type[Record], facts: Facts) -> Record:
    """Fill a dataclass with the facts that its fields are named after."""
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]
    return record(**{name: facts[name] for name in names})


def facts_of(record: object) -> dict[str, Any]:
    """Return the fields of a dataclass by name, not copied."""
    return {field.name: getattr(record, field.name) for field in fields(record)}  # type: ignore[arg-type]


def run_stages(stages: Sequence[Stage[Any, Any]], facts: Facts, control: RunControl) -> Facts:
    """Run stages one after the other.

    Args:
        stages: The stages, in order.
        facts: What is known before the first one.
        control: The run's progress and cancel flag.

    Returns:
        The facts, with those that the stages found out in place of older ones of the same name.
    """
    for stage in stages:
        control.check()
        facts = {**facts, **facts_of(stage.run(take(stage.inputs, facts), control))}
    return facts
